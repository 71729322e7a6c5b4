"""Who may join a server: listening, handshakes, and the links of the ranks that are in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from .. import wire
from ..config import TransportConfig
from ..errors import DBLPError, RemoteProtocolError, RoundAbortedError
from ..io.acceptor import Acceptor, Terms
from ..io.control import ControlConnection
from ..io.driver import PeerLink, make_link
from ..wire import Abort, Hello

__all__ = ["Admission", "Job", "tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a newcomer must fit."""

    ranks: tuple[int, ...]
    """Ranks that may join."""
    world: int
    """Number of ranks."""
    fingerprint: str
    """Text that must be equal on all ranks; \"\": that of the first one counts."""
    servers: int = 0
    """Of a mesh; 0: this is a parameter server."""
    rank: int = wire.NO_RANK
    """Of a mesh: the rank that listens here."""


class Admission:
    """The door of a server.  Everything happens on the loop thread.

    The owner sets `error`, `on_events` and `on_joined` before `start`.
    """

    def __init__(self, acceptor: Acceptor, terms: Terms, config: TransportConfig, job: Job) -> None:
        self.config = config
        self.job = job
        self.links: dict[int, PeerLink] = {}
        """By rank; the driver drives them."""
        self.error: Callable[[], DBLPError | None] = lambda: None
        """Why the job has ended; None while it goes on."""
        self.on_events: Callable[[int, float], None]
        """Called with rank and time when a link may have events."""
        self.on_joined: Callable[[int, PeerLink], None]
        """Called when a rank is in."""
        self._acceptor = acceptor
        self._terms = terms
        self._fingerprint = job.fingerprint
        self._joining: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> list[int]:
        """Listens; returns the descriptors that must interrupt the pump."""
        loop = asyncio.get_running_loop()
        self._acceptor.start(loop)
        self._server = await loop.create_server(self._new_connection, sock=self._acceptor.tcp)
        return [self._acceptor.tcp.fileno(), self._acceptor.udp.fileno()]

    def stop(self) -> None:
        """Nobody gets in any more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        """Closes the listening sockets."""
        self._acceptor.close()

    def rank_of(self, link: PeerLink) -> int | None:
        """Whose link it is; None: of nobody here."""
        return next((rank for rank, other in self.links.items() if other is link), None)

    def absent(self) -> str:
        """Who has not come yet, for people; '' when all are here."""
        missing = sorted(set(self.job.ranks) - set(self.links))
        return f"waiting for ranks {', '.join(map(str, missing))} to connect" if missing else ""

    # --- inside

    def _new_connection(self) -> ControlConnection:
        control = ControlConnection()
        task = asyncio.get_running_loop().create_task(self._join(control))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return control

    async def _join(self, control: ControlConnection) -> None:
        """From the connection to a driven link, or a refusal that says why."""
        joining: list[Hello] = []

        def check(hello: Hello) -> None:
            self._check(hello)
            joining.append(hello)
            self._joining.add(hello.rank)

        try:
            connection = await self._acceptor.admit(control, self._terms, check)
        finally:
            for hello in joining:
                self._joining.discard(hello.rank)
        if connection is None:
            return
        rank = connection.rank
        self._fingerprint = self._fingerprint or joining[0].fingerprint
        link = make_link(
            f"rank {rank}", connection, self.config, lambda now: self.on_events(rank, now)
        )
        self.links[rank] = link
        self.on_joined(rank, link)

    def _check(self, hello: Hello) -> None:
        """Refuses a newcomer that cannot be part of this job."""
        job, rank = self.job, hello.rank
        error = self.error()
        if error is not None:
            raise RoundAbortedError(f"the job has ended ({error}): start the server again")
        self._check_kind(hello)
        if hello.world not in (0, job.world):
            raise RemoteProtocolError(
                f"rank {rank} expects {hello.world} workers, the server {job.world}: give all the "
                "same number"
            )
        self._check_place(hello)
        if rank not in job.ranks:
            raise RemoteProtocolError(
                f"rank {rank} is out of range: the server takes {job.world} workers, ranks 0 to "
                f"{job.world - 1}"
            )
        if rank in self.links or rank in self._joining:
            raise RemoteProtocolError(
                f"rank {rank} is taken: give every worker a rank of its own, 0 to {job.world - 1}"
            )
        if self._fingerprint and hello.fingerprint and hello.fingerprint != self._fingerprint:
            raise RemoteProtocolError(
                f"rank {rank} has fingerprint {hello.fingerprint!r}, the job "
                f"{self._fingerprint!r}: start all ranks with the same model and settings"
            )

    def _check_kind(self, hello: Hello) -> None:
        """Refuses a newcomer of another kind, or one that has knocked at the wrong door."""
        job = self.job
        if not job.servers and hello.rank == wire.NO_RANK:
            raise RemoteProtocolError(
                "this is a parameter server, and a Peer has connected: use a Worker, or a Listener "
                "on the other side"
            )
        if bool(job.servers) != bool(hello.servers):
            here, there = ("Mesh", "Worker or Peer") if job.servers else ("ParameterServer", "Mesh")
            raise RemoteProtocolError(
                f"this is a {here}, and a {there} has connected: use the same on all ranks"
            )

    def _check_place(self, hello: Hello) -> None:
        """Refuses a rank of a mesh that looks for another one, or counts other servers."""
        job = self.job
        if job.servers != hello.servers:
            raise RemoteProtocolError(
                f"rank {hello.rank} counts {hello.servers} servers, rank {job.rank} {job.servers}: "
                "give all the same number"
            )
        if job.servers and hello.to != job.rank:
            raise RemoteProtocolError(
                f"rank {hello.rank} looks for rank {hello.to}, and this is rank {job.rank}: give "
                "all ranks the same list of addresses, in rank order"
            )


def tell(link: PeerLink, error: DBLPError) -> None:
    """Tells the rank at the other end why the job is over; nothing if it cannot hear that."""
    link.control.send(Abort(kind=type(error).__name__, reason=str(error)))
