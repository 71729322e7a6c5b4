"""What lives on the loop thread of a mesh: links, clock and futures around `MeshCore`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..config import TransportConfig
from ..errors import DBLPError, PeerLostError, RemoteProtocolError, RoundAbortedError
from ..faults import Impairment
from ..io.acceptor import Acceptor, Terms
from ..io.driver import Driver, PeerLink, make_link
from ..io.gil import hold_short_interval, release_short_interval
from ..io.handshake import Connection, Identity, connect_any
from ..io.loop import LoopThread
from ..phase import FixedTolerance
from ..wire import Bye
from .admission import Admission, Job
from .base import ExchangeReport
from .mesh_core import MeshCore
from .mesh_round import MeshRound
from .naming import error_of
from .server_core import MissingRule, ServerCore
from .server_decisions import Downlink
from .sharding import ShardPlan
from .worker_core import WorkerCore

__all__ = ["MeshOwner", "MeshSettings"]

log = logging.getLogger("dblp")

Candidates = Sequence[tuple[str, int]]
"""Addresses (host, port) of one rank, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings:
    """What all ranks of a mesh agree on, and who this one is."""

    rank: int
    world: int
    servers: int
    downlink: Downlink
    rule: MissingRule
    fingerprint: str
    config: TransportConfig
    impairment: Impairment | None

    @property
    def serves(self) -> bool:
        """Whether this rank averages a shard."""
        return self.rank < self.servers


class MeshOwner:
    """Everything but `submit` happens on the loop thread."""

    def __init__(self, thread: LoopThread, settings: MeshSettings, acceptor: Acceptor) -> None:
        self._thread = thread
        self._settings = settings
        config = settings.config
        server = self._new_server() if settings.serves and settings.world > 1 else None
        self.core = MeshCore(rank=settings.rank, world=settings.world, server=server)
        self.driver = Driver(thread.loop, thread.wake_fd, config, self)
        self._futures: dict[int, tuple[Future[ExchangeReport], float]] = {}
        self._uplinks: dict[int, PeerLink] = {}  # by rank of the server
        self._changed = asyncio.Event()  # somebody joined, or all is over
        self._admission = self._new_admission(acceptor, others=server is not None)

    def _new_server(self) -> ServerCore:
        settings = self._settings
        return ServerCore(
            world=settings.world,
            policy=FixedTolerance(0),
            config=settings.config,
            downlink=settings.downlink,
            rule=settings.rule,
            rng=random.Random(settings.config.seed),
            local=settings.rank,
        )

    def _new_admission(self, acceptor: Acceptor, *, others: bool) -> Admission:
        settings = self._settings
        config = settings.config
        terms = Terms(
            world=settings.world,
            downlink=settings.downlink,
            rule=settings.rule,
            tolerance="0",
            order=config.order,
            timeout_s=config.timeout_s,
        )
        ranks = tuple(r for r in range(settings.world) if r != settings.rank) if others else ()
        job = Job(
            ranks=ranks,
            world=settings.world,
            fingerprint=settings.fingerprint,
            servers=settings.servers,
            rank=settings.rank,
        )
        admission = Admission(acceptor, terms, config, job)
        admission.error = lambda: self.core.error
        admission.on_events = self._on_server_events
        admission.on_joined = self._on_joined
        return admission

    async def start(self) -> None:
        """Listens."""
        self.driver.extra_fds = await self._admission.start()

    # --- connecting

    async def connect(self, addresses: Sequence[Candidates], packet_bytes: int) -> None:
        """Connects to every server and waits for every rank that this one serves."""
        try:
            await self._connect(addresses, packet_bytes)
        except DBLPError as error:
            self.core.fail(error)  # the others need not wait for a rank that will not come
            self.on_tick(self.driver.now())
            raise

    async def _connect(self, addresses: Sequence[Candidates], packet_bytes: int) -> None:
        settings = self._settings
        config = replace(settings.config, mtu=packet_bytes)
        deadline = asyncio.get_running_loop().time() + settings.config.connect_timeout_s
        servers = [r for r in range(settings.servers) if r != settings.rank]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._connect_to(server, addresses[server], config))
                for server in servers
            ]
        connections = [task.result() for task in tasks]
        failure = next((one for one in connections if isinstance(one, DBLPError)), None)
        if failure is not None:
            for one in connections:
                if isinstance(one, Connection):
                    one.control.close()
                    one.sock.close()
            raise failure
        for server, one in zip(servers, connections, strict=True):
            assert isinstance(one, Connection)
            self._add_uplink(server, one)
        await self._wait_for_others(deadline)
        self._join()

    async def _connect_to(
        self, server: int, candidates: Candidates, config: TransportConfig
    ) -> Connection | DBLPError:
        """The error is returned: a task group would wrap it."""
        settings = self._settings
        identity = Identity(
            rank=settings.rank,
            world=settings.world,
            fingerprint=settings.fingerprint,
            servers=settings.servers,
            to=server,
        )
        try:
            connection = await connect_any(candidates, identity, config, settings.impairment)
        except DBLPError as error:
            return error_of(server, error)
        theirs = (connection.welcome.downlink, connection.welcome.rule)
        if theirs != (settings.downlink, settings.rule):
            connection.control.close()
            connection.sock.close()
            return RemoteProtocolError(
                f"rank {server} has downlink={theirs[0]!r}, rule={theirs[1]!r}, rank "
                f"{settings.rank} {settings.downlink!r}, {settings.rule!r}: give all the same"
            )
        return connection

    def _add_uplink(self, server: int, connection: Connection) -> None:
        link = make_link(
            f"rank {server}", connection, self._settings.config,
            partial(self._on_worker_events, server),
        )  # fmt: skip
        self._uplinks[server] = link
        self.driver.add(link)

    async def _wait_for_others(self, deadline: float) -> None:
        while self.core.error is None and self._admission.absent():
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                limit_s = self._settings.config.connect_timeout_s
                raise PeerLostError(
                    f"rank {self._settings.rank} is {self._admission.absent()}, for {limit_s:g} s: "
                    "start them, or raise connect_timeout_s"
                ) from None
        if self.core.error is not None:
            raise self.core.error.with_traceback(None)

    def _join(self) -> None:
        """All links are there: cut buffers by what one datagram carries on all of them."""
        settings = self._settings
        links = [*self._uplinks.items(), *self._admission.links.items()]
        sizes = {link.channel.chunk_bytes: rank for rank, link in links}
        if len(sizes) > 1:
            (one, rank), (other, other_rank) = sorted(sizes.items())[:2]
            raise RemoteProtocolError(
                f"the path to rank {rank} carries chunks of {one} bytes, the one to rank "
                f"{other_rank} {other}: set TransportConfig(mtu=...) to the smallest path MTU on "
                "all ranks"
            )
        workers = {
            server: WorkerCore(
                rank=settings.rank,
                world=settings.world,
                session=link.session,
                config=settings.config,
                common=settings.downlink == "common",
                server=f"rank {server}",
                server_may_leave=True,
            )
            for server, link in self._uplinks.items()
        }
        self.core.join(ShardPlan(settings.servers, next(iter(sizes), 8)), workers)

    @property
    def chunk_sizes(self) -> set[int]:
        """Payload bytes of a full datagram, on all links that there are."""
        links = [*self._uplinks.values(), *self._admission.links.values()]
        return {link.channel.chunk_bytes for link in links}

    def _on_joined(self, rank: int, link: PeerLink) -> None:
        server = self.core.server
        assert server is not None
        self.driver.add(link)
        server.attach(rank, link.session, now=self.driver.now())
        if self.core.error is not None:
            link.session.abort(self.core.error)
        self._changed.set()
        self.driver.kick()

    # --- rounds

    def submit(self, start: Callable[[float], MeshRound]) -> Future[ExchangeReport]:
        """From any thread: runs `start(now)`; the future is done at the end of the round."""
        self._thread.check_usable()
        future: Future[ExchangeReport] = Future()
        future.set_running_or_notify_cancel()  # the buffer is the transport's: no way back
        called = self.driver.now()
        self._thread.submit(lambda: self._begin(future, start, called))
        return future

    def _begin(
        self, future: Future[Any], start: Callable[[float], MeshRound], called: float
    ) -> None:
        try:
            work = start(self.driver.now())
        except DBLPError as error:
            future.set_exception(error)
            self.driver.kick()
            return
        except Exception as error:
            future.set_exception(
                DBLPError(f"internal error ({type(error).__name__}: {error}): please report it")
            )
            log.exception("internal error in a command")
            return
        self._futures[id(work)] = (future, called)
        hold_short_interval(self._settings.config.gil_switch_interval_s)
        self.driver.kick()

    # --- Owner of the driver

    def _on_worker_events(self, server: int, now: float) -> None:
        if server in self.core.workers:  # else the others are still connecting
            self.core.on_worker_events(server, now=now)

    def _on_server_events(self, rank: int, now: float) -> None:
        while self.core.on_server_events(rank, now=now, pause=True):
            self.driver.transmit()

    def on_tick(self, now: float) -> None:
        core = self.core
        core.on_timeout(now=now)
        for notice in core.take_notices():
            log.warning("%s", notice)
        for rank, served, frame in core.take_frames():
            link = (self._admission.links if served else self._uplinks).get(rank)
            if link is not None:
                link.control.send(frame)
        for finished in core.take_finished():
            future, called = self._futures.pop(id(finished.work))
            release_short_interval(self._settings.config.gil_switch_interval_s)
            if finished.error is not None:
                future.set_exception(finished.error)
            else:
                future.set_result(finished.round.report(now - called))
        if core.error is not None:
            self._changed.set()

    def next_timeout(self) -> float | None:
        return self.core.next_timeout()

    def on_link_failed(self, link: PeerLink, error: DBLPError) -> None:
        rank = self._admission.rank_of(link)
        served = rank is not None
        if rank is None:
            rank = next(server for server, other in self._uplinks.items() if other is link)
        self.core.link_failed(rank, error, served=served, now=self.driver.now())

    def stall(self) -> str:
        return self.core.stall()

    async def shut_down(self) -> None:
        """Ends open work with RoundAbortedError and says goodbye, or that work was left undone."""
        core = self.core
        self._admission.stop()
        self.driver.settle()  # what has arrived counts: a round may be over by now
        undone = core.stall()
        if core.error is None and (undone or not core.idle):
            core.fail(
                RoundAbortedError(
                    f"rank {core.rank} was closed while work was open ({undone}): wait for the "
                    "calls to return before closing"
                )
            )
        elif core.error is None:
            for link in (*self._admission.links.values(), *self._uplinks.values()):
                if not link.failed:
                    link.control.send(Bye())
        self.on_tick(self.driver.now())
        self.driver.close()
        self._admission.close()
