"""A parameter server and its workers in virtual time."""

from __future__ import annotations

import math
import random
from functools import partial

from .. import fastpath
from ..collective.local_rank import FinishedLocal, LocalRound
from ..collective.server_core import ServerCore
from ..collective.worker_core import FinishedRound, WorkerCore
from ..errors import DBLPError, PeerLostError, RoundAbortedError
from ..tolerance import Tolerance
from ..wire import ROUND_MODULUS, Bye
from .joint import GradientPool, connect
from .network import End, Host, Network
from .options import Options, RoundPlan
from .watch import Violation, Watch

__all__ = ["Cluster", "SimulatedWorker"]

DETECTION_S = 0.001
"""From a crash to the reset of its connections, besides the delay of the path."""


class LocalDoor:
    """What the training loop of the local rank calls: the part of `WorkerCore` that it needs."""

    def __init__(self, server: ServerCore) -> None:
        self._server = server

    def all_reduce(
        self,
        buffer: memoryview,
        dtype: str,
        *,
        stream: int,
        squared_norm: float,
        tolerance: Tolerance | None,
        now: float,
    ) -> None:
        """As `WorkerCore.all_reduce`."""
        round_ = LocalRound(
            buffer=buffer, dtype=dtype, stream=stream, squared_norm=squared_norm,
            tolerance=tolerance, critical=False, whole_bytes=0,
        )  # fmt: skip
        self._server.all_reduce_local(round_, now=now)

    def take_finished(self) -> list[FinishedLocal]:
        """As `WorkerCore.take_finished`."""
        return self._server.take_local()

    def take_notices(self) -> list[str]:
        """The server has its own."""
        return []

    def next_timeout(self) -> float | None:
        """The server has its own."""
        return None

    def on_timeout(self, *, now: float) -> None:
        """Nothing: the server has its own."""

    def stall(self) -> str:
        """The server says it."""
        return ""


class SimulatedWorker:
    """One rank: its core, and the training loop that calls it."""

    def __init__(
        self, rank: int, core: WorkerCore | LocalDoor, host: Host, end: End | None, streams: int
    ) -> None:
        self.rank = rank
        self.core = core
        self.host = host
        self.end = end
        """None: it lives with the server."""
        self.submitted = [0] * streams
        """Rounds submitted, by stream."""
        self.ended = [0] * streams
        """Rounds that came back, by stream."""
        self.buffers: list[bytearray] = []
        self.finished: list[FinishedRound | FinishedLocal] = []
        self.error: DBLPError | None = None
        """With which its rounds ended."""
        self.left = False


class Cluster:
    """One `ServerCore`, one `WorkerCore` per rank, and their training loops.

    Commands: `start`, `hurry`, `strike`.  Getters: `done`, `ends`, `check_end`.
    """

    def __init__(
        self,
        options: Options,
        network: Network,
        watch: Watch,
        sources: dict[tuple[str, int, int, int], bytes],
    ) -> None:
        self.options = options
        self.network = network
        self.sources = sources
        self.workers: list[SimulatedWorker] = []
        self._watch = watch
        self._pool = GradientPool(options.seed)
        self._rng = random.Random(f"{options.seed}/cluster")
        self._think_s = options.think_s
        self._reports: list[tuple[str, int]] = []
        policy = options.make_policy()
        self.server = ServerCore(
            world=options.world,
            policy=policy,
            config=options.config,
            downlink=options.downlink,  # type: ignore[arg-type]
            rule=options.rule,  # type: ignore[arg-type]
            norm=options.norm,  # type: ignore[arg-type]
            rng=random.Random(f"{options.seed}/server"),
            first_round=options.first_round,
            local=options.local,
        )
        self.server_host = Host(
            "server",
            lag_s=options.lags_s[1],
            late_turns=options.late_turns,
            tick=self._tick_server,
            next_timeout=self.server.next_timeout,
        )
        self.server_ends: dict[int, End] = {}
        for rank in range(options.world):
            if rank == options.local:
                door, streams = LocalDoor(self.server), len(options.streams)
                self.workers.append(SimulatedWorker(rank, door, self.server_host, None, streams))
            else:
                self._add_worker(rank, watch)
        ends = (worker.end for worker in self.workers)
        self.ends = [*self.server_ends.values(), *(end for end in ends if end is not None)]

    def _add_worker(self, rank: int, watch: Watch) -> None:
        options = self.options
        end, server_end = connect(
            options, watch, roles=("worker", "server"), rank=rank,
            peers=("the server", f"rank {rank}"),
        )  # fmt: skip
        core = WorkerCore(
            rank=rank,
            world=options.world,
            session=end.session,
            config=options.config,
            tolerance=options.make_policy().initial().tolerance,
            common=options.downlink == "common",
            first_round=options.first_round,
        )
        host = Host(
            f"worker-{rank}",
            lag_s=options.lags_s[0],
            late_turns=options.late_turns,
            next_timeout=core.next_timeout,
        )
        worker = SimulatedWorker(rank, core, host, end, len(options.streams))
        host.tick = partial(self._tick_worker, worker)
        end.on_events = lambda now: core.on_events(now=now)
        end.on_failed = core.fail
        server_end.on_events = lambda now: self.server.on_events(rank, now=now)
        server_end.on_failed = partial(self._server_end_failed, rank)
        host.add(end)
        self.server_host.add(server_end)
        self.workers.append(worker)
        self.server_ends[rank] = server_end
        self.server.attach(rank, server_end.session, now=0.0)

    # --- commands ---------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules the first rounds of all workers."""
        for worker in self.workers:
            at = self._rng.random() * self.options.skew_s
            for stream in range(len(self.options.streams)):
                self.network.call_at(at, self._submit, worker, stream)

    def hurry(self) -> None:
        """From now on nobody thinks between rounds."""
        self._think_s = 0.0

    def strike(self) -> None:
        """The trouble of this scenario happens, if it is of the sudden kind."""
        options, network = self.options, self.network
        network.news = True
        worker = self.workers[options.trouble_rank]
        if options.trouble == "crash" and not worker.host.dead:
            worker.host.dead = True
            lost = PeerLostError("the connection was reset by the peer")
            at = network.now + options.up.delay_s + DETECTION_S
            network.call_at(at, self._lose, self.server_ends[worker.rank], lost)
        elif options.trouble == "server crash":
            self.server_host.dead = True
            lost = PeerLostError("the server is lost: the connection was reset by the peer")
            for other in self.workers:
                if other.end is None:
                    continue
                at = network.now + options.down.delay_s + DETECTION_S
                network.call_at(at, self._lose, other.end, lost)
        elif options.trouble == "leave":
            self._leave(worker)
        elif options.trouble == "freeze":
            worker.host.dead = True

    def _lose(self, end: End, error: DBLPError) -> None:
        if not end.host.dead and not end.session.peer_left:
            self.network.fail(end, error)
            self.network.kick(end.host)

    def _leave(self, worker: SimulatedWorker) -> None:
        """As `Worker.close`: open work ends, and a goodbye."""
        if worker.host.dead or worker.end is None:
            return
        assert isinstance(worker.core, WorkerCore)
        worker.left = True
        worker.core.fail(RoundAbortedError("this endpoint was closed while work was open"))
        self._tick_worker(worker, self.network.now)
        self.network.put_reliable(worker.end, Bye())
        worker.host.dead = True

    # --- the training loop of a worker ------------------------------------------------------

    def _submit(self, worker: SimulatedWorker, stream: int) -> None:
        """Submits the next round of `stream`, or all of them."""
        options = self.options
        plan = options.streams[stream]
        self.network.news = True
        while worker.submitted[stream] < len(plan) and not worker.host.dead:
            number = worker.submitted[stream]
            worker.submitted[stream] += 1
            if not self._submit_one(worker, stream, number, plan[number]):
                worker.ended[stream] += 1
                continue
            if not options.queued:
                break
        if not worker.host.dead:
            self.network.kick(worker.host)

    def _submit_one(
        self, worker: SimulatedWorker, stream: int, number: int, plan: RoundPlan
    ) -> bool:
        """False when the worker refuses, because it has ended."""
        options = self.options
        elements = plan.elements
        is_odd = options.trouble == "mismatch" and worker.rank == options.trouble_rank
        if is_odd and stream == len(options.streams) - 1 and number == len(options.streams[0]) // 2:
            elements += 1
        at = worker.rank * 1009 + number * 101 + stream * 11
        source = self._pool.take(elements, plan.dtype, at=at)
        round_id = (options.first_round + number) % ROUND_MODULUS
        self.sources["worker", worker.rank, stream, round_id] = source
        buffer = bytearray(source)
        norm = fastpath.squared_norm(buffer, plan.dtype) if buffer else 0.0
        tolerance = Tolerance.of(plan.tolerance) if options.announced else None
        try:
            worker.core.all_reduce(
                memoryview(buffer),
                plan.dtype,
                stream=stream,
                squared_norm=norm if options.norm_known else math.nan,
                tolerance=tolerance,
                now=self.network.now,
            )
        except DBLPError as error:
            worker.error = worker.error or error
            return False
        worker.buffers.append(buffer)
        return True

    def _tick_worker(self, worker: SimulatedWorker, now: float) -> None:
        core = worker.core
        due = core.next_timeout()
        if due is not None and due <= now:
            core.on_timeout(now=now)
        core.take_notices()
        for one in core.take_finished():
            worker.finished.append(one)
            worker.error = worker.error or one.error
            stream = one.round.stream
            if one.error is None:
                self._check_round(worker, one)
            worker.ended[stream] += 1
            if worker.submitted[stream] < len(self.options.streams[stream]):
                self.network.call_at(now + self._think_s, self._submit, worker, stream)
        if self.options.leave_when_done and self._has_done(worker) and not worker.left:
            self._leave(worker)

    def _check_round(self, worker: SimulatedWorker, one: FinishedRound | FinishedLocal) -> None:
        """A round that ended well."""
        stream = one.round.stream
        if isinstance(one, FinishedRound):
            sender = one.round.sender
            if self.options.announced and (sender is None or sender.final_missing is None):
                tolerance = one.round.tolerance
                if tolerance is not None and not tolerance.is_exact and one.round.buffer.nbytes:
                    raise Violation("R1", f"rank {worker.rank} does not know what was missing")
            return
        round_id = (self.options.first_round + worker.ended[stream]) % ROUND_MODULUS
        result = bytes(one.round.buffer)
        self._watch.tell("local_over", worker.rank, stream, round_id, result)
        one.round.buffer[:] = bytes(len(result))  # S2: nobody may read it any more

    # --- the server -------------------------------------------------------------------------

    def _tick_server(self, now: float) -> None:
        server = self.server
        due = server.next_timeout()
        if due is not None and due <= now:
            server.on_timeout(now=now)
        server.take_notices()
        for report in server.take_reports():
            assert report.rank is not None
            self._reports.append((report.direction, report.rank))
        for rank, frame in server.take_broadcast():
            self.network.put_reliable(self.server_ends[rank], frame)
        if self.options.local is not None:
            self._tick_worker(self.workers[self.options.local], now)

    def _server_end_failed(self, rank: int, error: DBLPError) -> None:
        self.server.peer_lost(rank, error, now=self.network.now)

    # --- getters ----------------------------------------------------------------------------

    def _has_done(self, worker: SimulatedWorker) -> bool:
        plans = self.options.streams
        return all(ended == len(plan) for ended, plan in zip(worker.ended, plans, strict=True))

    def done(self) -> bool:
        """Every round of every living worker has ended, well or not."""
        return all(worker.host.dead or self._has_done(worker) for worker in self.workers)

    def waiting(self) -> str:
        """What the living workers wait for."""
        stalls = [worker.core.stall() for worker in self.workers if not worker.host.dead]
        return "; ".join(text for text in (*stalls, "server: " + self.server.stall()) if text)

    def check_end(self) -> None:
        """Without trouble all is there, and with trouble everybody knows why it is not."""
        options = self.options
        rank, trouble = options.trouble_rank, options.trouble
        expected = {
            "": None,
            "crash": ("PeerLostError", f"rank {rank}"),
            "server crash": ("PeerLostError", "server"),
            "leave": ("RoundAbortedError", f"rank {rank}"),
            "freeze": ("RoundTimeoutError", "round"),
            "mismatch": ("RemoteProtocolError", "rank"),
        }[trouble]
        for worker in self.workers:
            error = worker.error
            if worker.end is None and trouble == "server crash":
                continue
            if error is None or (worker.rank == rank and trouble in ("crash", "leave")):
                continue
            if expected is None:
                raise Violation("L1", f"rank {worker.rank} ended with {error!r}")
            if type(error).__name__ != expected[0] or expected[1] not in str(error):
                raise Violation("L1", f"rank {worker.rank} ended with {error!r} after {trouble}")
        if trouble in ("", "mismatch"):
            self._check_whole(trouble)

    def _check_whole(self, trouble: str) -> None:
        options = self.options
        if trouble:
            if any(worker.error is None for worker in self.workers):
                raise Violation("L1", "a rank does not know that the ranks disagree")
            return
        remote = len(self.server_ends)
        rounds = remote * sum(map(len, options.streams))
        for direction in ("uplink", "downlink"):
            count = sum(1 for way, _ in self._reports if way == direction)
            if count != rounds:
                raise Violation("L1", f"{count} reports of {direction}s for {rounds} rounds")
        # After the last round the next one is armed, unless everybody has left by then.
        armed = len(options.streams) * (remote + (options.local is None))
        if self.server.pool.in_use > armed or (
            self.server.pool.in_use != armed and not options.leave_when_done
        ):
            raise Violation("T1", f"{self.server.pool.in_use} buffers in use, {armed} expected")
