"""Two point-to-point peers in virtual time."""

from __future__ import annotations

import random
from functools import partial

from ..collective.point_to_point_core import Direction, FinishedTransfer, PointToPointCore
from ..errors import DBLPError, PeerLostError, RoundAbortedError
from ..tolerance import Tolerance
from ..wire import ROUND_MODULUS, Bye
from .cluster import DETECTION_S
from .joint import GradientPool, connect
from .network import End, Host, Network
from .options import Options, RoundPlan
from .watch import Violation, Watch

__all__ = ["Pair"]


class _Peer:
    """One side: its core, and the program that calls it."""

    def __init__(self, role: str, core: PointToPointCore, host: Host, end: End) -> None:
        self.role = role
        self.core = core
        self.host = host
        self.end = end
        self.submitted = 0
        self.ended = 0
        self.left = False
        self.error: DBLPError | None = None
        self.finished: list[FinishedTransfer] = []


class Pair:
    """Two `PointToPointCore`s; every `RoundPlan` is a send on one side and a recv on the other.

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
        self._pool = GradientPool(options.seed)
        self._rng = random.Random(f"{options.seed}/pair")
        self._think_s = options.think_s
        self._transfers = sum(map(len, options.streams))
        self.ends = list(connect(options, watch, roles=("a", "b"), rank=0, peers=("b", "a")))
        self.peers: list[_Peer] = []
        for role, end, lag_s in zip(("a", "b"), self.ends, options.lags_s, strict=True):
            core = PointToPointCore(
                session=end.session,
                config=options.config,
                peer="b" if role == "a" else "a",
                first_round=options.first_round,
            )
            host = Host(
                role, lag_s=lag_s, late_turns=options.late_turns, next_timeout=core.next_timeout
            )
            peer = _Peer(role, core, host, end)
            host.tick = partial(self._tick, peer)
            host.add(end)
            end.on_events = partial(self._on_events, core)
            end.on_failed = core.fail
            self.peers.append(peer)

    @staticmethod
    def _on_events(core: PointToPointCore, now: float) -> None:
        core.on_events(now=now)

    # --- commands ---------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules all transfers: each side calls when it likes, in the order of the streams."""
        for peer in self.peers:
            at = self._rng.random() * self.options.skew_s
            for stream, number in _calls(self.options):
                plan = self.options.streams[stream][number]
                self.network.call_at(at, self._submit, peer, stream, plan)
                at += 0.0 if self.options.queued else self._think_s * self._rng.random()

    def hurry(self) -> None:
        """Nothing to do: the calls are scheduled."""

    def strike(self) -> None:
        """The trouble of this scenario happens, if it is of the sudden kind."""
        options, network = self.options, self.network
        network.news = True
        striking, other = self.peers if options.seed % 2 else reversed(self.peers)
        if options.trouble in ("crash", "server crash", "freeze"):
            striking.host.dead = True
            if options.trouble != "freeze":
                lost = PeerLostError(f"{striking.role} is lost: the connection was reset")
                at = network.now + options.up.delay_s + DETECTION_S
                network.call_at(at, self._lose, other.end, lost)
        elif options.trouble == "leave":
            self._leave(striking)

    def _lose(self, end: End, error: DBLPError) -> None:
        if not end.host.dead and not end.session.peer_left:
            self.network.fail(end, error)
            self.network.kick(end.host)

    def _leave(self, peer: _Peer) -> None:
        """As `Peer.close`: open work ends, and a goodbye."""
        if peer.host.dead or peer.left:
            return
        peer.left = True
        peer.core.fail(RoundAbortedError("this endpoint was closed while work was open"))
        self._tick(peer, self.network.now)
        self.network.put_reliable(peer.end, Bye())
        peer.host.dead = True

    # --- the program of a peer --------------------------------------------------------------

    def _submit(self, peer: _Peer, stream: int, plan: RoundPlan) -> None:
        if peer.host.dead:
            return
        self.network.news = True
        peer.submitted += 1
        sends = (peer.role == "a") != plan.backwards
        now = self.network.now
        elements = plan.elements
        odd = self._transfers // 2 + 1
        if self.options.trouble == "mismatch" and not sends and peer.submitted == odd:
            elements += 1
        try:
            if sends:
                source = self._pool.take(elements, plan.dtype, at=peer.submitted * 101 + stream)
                transfer = peer.core.send(memoryview(source), plan.dtype, stream=stream, now=now)
                number = self._count(peer.role, stream)
                round_id = (self.options.first_round + number) % ROUND_MODULUS
                self.sources[peer.role, 0, stream, round_id] = source
            else:
                nbytes = len(self._pool.take(elements, plan.dtype, at=0))
                transfer = peer.core.recv(
                    memoryview(bytearray(b"\xaa" * nbytes)),
                    Tolerance.of(plan.tolerance),
                    plan.dtype,
                    stream=stream,
                    now=now,
                )
        except DBLPError as error:
            peer.error = peer.error or error
            peer.ended += 1
            return
        assert transfer.stream == stream
        self.network.kick(peer.host)

    def _count(self, role: str, stream: int) -> int:
        """How many sends of `role` on `stream` there were before."""
        return sum(1 for key in self.sources if key[0] == role and key[2] == stream)

    def _on_finished(self, peer: _Peer, one: FinishedTransfer) -> None:
        peer.finished.append(one)
        peer.error = peer.error or one.error
        peer.ended += 1
        report, transfer = one.report, one.transfer
        if report is not None and transfer.direction is Direction.RECEIVE:
            bound = transfer.tolerance.missing_max(report.chunks) if transfer.tolerance else 0
            if report.missing > bound and not report.at_deadline:  # then `OneStop` knows better
                raise Violation("R2", f"{peer.role}: {report.missing} chunks missing of {bound}")

    def _tick(self, peer: _Peer, now: float) -> None:
        core = peer.core
        due = core.next_timeout()
        if due is not None and due <= now:
            core.on_timeout(now=now)
        core.take_notices()
        for frame in core.take_broadcast():
            self.network.put_reliable(peer.end, frame)
        for one in core.take_finished():
            self._on_finished(peer, one)
        if self.options.leave_when_done and peer.ended == self._transfers:
            self._leave(peer)

    # --- getters ----------------------------------------------------------------------------

    def done(self) -> bool:
        """Every transfer of every living peer has ended, well or not."""
        return all(peer.host.dead or peer.ended == self._transfers for peer in self.peers)

    def waiting(self) -> str:
        """What the living peers wait for."""
        return "; ".join(peer.core.stall() for peer in self.peers if not peer.host.dead)

    def check_end(self) -> None:
        """Without trouble all is there, and with trouble everybody knows why it is not."""
        trouble = self.options.trouble
        allowed = {
            "": (),
            "crash": ("PeerLostError",),
            "server crash": ("PeerLostError",),
            "leave": ("PeerLostError", "RoundAbortedError"),
            "freeze": ("RoundTimeoutError",),
            "mismatch": ("RemoteProtocolError", "LocalProtocolError"),
        }[trouble]
        for peer in self.peers:
            if peer.error is not None and type(peer.error).__name__ not in allowed:
                raise Violation("L1", f"{peer.role} ended with {peer.error!r} after {trouble!r}")


def _calls(options: Options) -> list[tuple[int, int]]:
    """(stream, number) of all transfers in the order of the calls."""
    return [
        (stream, number)
        for number in range(max(map(len, options.streams)))
        for stream in range(len(options.streams))
        if number < len(options.streams[stream])
    ]
