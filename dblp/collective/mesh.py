"""A group of ranks without a central server: every rank averages a part of every buffer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from typing import Any, cast

from .. import fastpath
from ..buffers import byte_view_of
from ..config import MTU_WITHIN_HOST, TransportConfig
from ..errors import ConfigError, DBLPError
from ..faults import Impairment
from ..io.acceptor import Acceptor
from ..io.control import parse_address
from ..io.interfaces import is_within_host
from ..io.loop import LoopThread
from ..tolerance import Tolerance
from .base import ExchangeReport
from .endpoint import CLOSE_TIMEOUT_S, wait_for
from .mesh_owner import MeshOwner, MeshSettings
from .server import check_choice
from .server_core import MissingRule
from .server_decisions import Downlink
from .worker import CALL_MARGIN_S

__all__ = ["Mesh"]

Address = str | tuple[str, int]

WORLD_MAX = 254
"""Ranks that one reduction takes."""


class Mesh:
    """One rank of a job that shares the work of the server (sharded Algorithm 3).

    ```python
    with dblp.Mesh(rank=rank, world=3, listen="0.0.0.0:7000") as mesh:
        mesh.connect(["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"])
        report = mesh.all_reduce(grad, tolerance="40.8%")
    ```

    Every buffer is cut into one shard per serving rank.  So each link carries 2·(N−1)/N of the
    gradient both ways, as with a ring, and no host is a bottleneck.  Calls may come from any
    thread.  After an error every later call raises it again, and the contents of buffers that were
    on the way are unspecified.
    """

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        servers: int | None = None,
        listen: Address = "0.0.0.0:0",
        config: TransportConfig | None = None,
        downlink: Downlink = "exact",
        rule: MissingRule = "zero",
        fingerprint: str = "",
        impairment: Impairment | None = None,
    ) -> None:
        """Listens; `connect` does the rest.  All ranks must give the same values but for `rank`,
        `listen` and `impairment`.

        Args:
            rank: of this process, 0 … world-1.
            world: number of ranks, 1 … 254.
            servers: how many ranks average shards, the first ones; None: all; 1: rank 0 is the
                parameter server of the paper.
            listen: "host:port" or (host, port), of one TCP and one UDP port; 0 takes a free one.
            config: how bytes travel; the default fits.
            downlink: "exact": every rank gets the whole mean.  "common": with a tolerance only some
                chunks go down, the same for all ranks, and the others become zero.  Those that all
                ranks have delivered stay, then those that most have, and of these the ones of most
                energy; with `TransportConfig(order=...)` other than "auto" and "magnitude" the
                first in memory, which is faster.  "lossy" (paper): each rank may lack
                other chunks of the mean.
            rule: "zero" (paper) divides by the number of ranks; "contributors" divides each chunk
                by the number of ranks that delivered it.
            fingerprint: text that must be equal on all ranks that give one.
            impairment: faults to inject into what arrives here.

        Raises:
            ConfigError: a bad argument, or an address that cannot be used.
        """
        self.config = config if config is not None else TransportConfig()
        _check_integer("world", world, 1, WORLD_MAX)
        _check_integer("rank", rank, 0, world - 1)
        if servers is not None:
            _check_integer("servers", servers, 1, world)
        check_choice("downlink", downlink, ("exact", "common", "lossy"))
        check_choice("rule", rule, ("zero", "contributors"))
        self.rank = rank
        self.world = world
        self._settings = MeshSettings(
            rank=rank,
            world=world,
            servers=world if servers is None else servers,
            downlink=downlink,
            rule=rule,
            fingerprint=fingerprint,
            config=self.config,
            impairment=impairment,
        )
        all_serve = self._settings.servers == world
        host, port = parse_address(listen)
        acceptor = Acceptor(host, port, self.config, impairment, large_within_host=all_serve)
        self.address: str = acceptor.address
        """Where this rank listens, as "host:port"."""
        self.port: int = parse_address(self.address)[1]
        """TCP port, and the UDP port where it is free."""
        self._connected = False
        self._error: DBLPError | None = None
        self._owner = self._launch(acceptor)
        if world == 1:
            self.connect([None])

    def _launch(self, acceptor: Acceptor) -> MeshOwner:
        """The owner, started on its own loop thread; thread and sockets end when that fails."""
        try:
            self._thread = LoopThread(self.config.loop, f"dblp-mesh-{self.rank}")
        except BaseException:
            acceptor.close()
            raise
        try:
            owner: MeshOwner = self._thread.call(self._start(acceptor), CALL_MARGIN_S)
        except BaseException:
            self._thread.close()
            acceptor.close()
            raise
        return owner

    async def _start(self, acceptor: Acceptor) -> MeshOwner:
        owner = MeshOwner(self._thread, self._settings, acceptor)
        await owner.start()
        return owner

    def connect(self, addresses: Sequence[Address | Sequence[Address] | None]) -> None:
        """Connects to all ranks; returns when all of them are here.

        Args:
            addresses: one entry per rank, in rank order: an address, or several that are tried in
                turn.  The entries of this rank and of ranks that serve nothing are not used.

        Raises:
            ConfigError: a bad address.
            PeerLostError: a rank cannot be reached, or has not come, within
                `config.connect_timeout_s`; named.
            RemoteProtocolError: the ranks do not agree about the job.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._connected:
            return
        if len(addresses) != self.world:
            raise ConfigError(
                f"there are {len(addresses)} addresses for {self.world} ranks: give one entry per "
                "rank"
            )
        candidates = [
            [] if entry is None or rank == self.rank else _candidates(entry)
            for rank, entry in enumerate(addresses)
        ]
        for rank in range(self._settings.servers):
            if rank != self.rank and not candidates[rank]:
                raise ConfigError(f"rank {rank} serves a shard and has no address: give it one")
        packet_bytes = self.config.packet_bytes
        if self.config.mtu is None and self._is_within_host(candidates):
            packet_bytes = MTU_WITHIN_HOST
        try:
            self._thread.call(
                self._owner.connect(candidates, packet_bytes),
                self.config.connect_timeout_s + CALL_MARGIN_S,
            )
        except DBLPError as error:
            self._error = error
            raise
        self._connected = True

    def _is_within_host(self, candidates: Sequence[Sequence[tuple[str, int]]]) -> bool:
        """Whether all other ranks are on this host.  Where some of them serve nothing, and nobody
        need know their addresses, not all would come to the same answer."""
        return self._settings.servers == self.world and all(
            is_within_host(host, packet_bytes=MTU_WITHIN_HOST)
            for found in candidates
            for host, _ in found
        )

    def all_reduce(
        self,
        grad: Any,
        *,
        stream: int = 0,
        tolerance: Tolerance | Fraction | str | int | None = None,
        critical: bool = False,
        squared_norm: float | None = None,
    ) -> ExchangeReport:
        """Replaces `grad` by its mean over all ranks, and says what it took.

        Args:
            grad: contiguous numpy array or CPU tensor of float16, bfloat16, float32, float64 or
                complex numbers, of the same shape and dtype on every rank; written in place.
            stream: 0 … 65535; calls with the same stream follow each other, different streams run
                side by side.
            tolerance: share of this rank's chunks that each server may do without, such as
                "40.8%"; None is exact.  The same on all ranks.
            critical: whether this is a critical learning regime: no deadline holds then.  The same
                on all ranks.
            squared_norm: sum of the squared elements of `grad`, if it is known; None computes it,
                NaN says that nobody needs it.

        Raises:
            LocalProtocolError: the buffer cannot be averaged in place, or the mesh is closed or not
                connected.
            RemoteProtocolError: the ranks do not agree on shape, dtype or tolerance.
            PeerLostError: another rank is gone; named.
            RoundTimeoutError: not done within `config.timeout_s`.
        """
        future = self.all_reduce_async(
            grad, stream=stream, tolerance=tolerance, critical=critical, squared_norm=squared_norm
        )
        return cast(ExchangeReport, wait_for(self._thread, future, "all_reduce"))

    def all_reduce_async(
        self,
        grad: Any,
        *,
        stream: int = 0,
        tolerance: Tolerance | Fraction | str | int | None = None,
        critical: bool = False,
        squared_norm: float | None = None,
    ) -> Future[ExchangeReport]:
        """Like `all_reduce`, at once: `grad` belongs to the transport until the future is done.

        The future is completed on the transport's own thread: callbacks must be short and must not
        wait for another all-reduce.
        """
        self._thread.check_usable()
        view, dtype = byte_view_of(grad, what="grad", writable=True)
        told = None if tolerance is None else Tolerance.of(tolerance)
        norm = fastpath.squared_norm(view, dtype) if squared_norm is None else squared_norm
        core = self._owner.core
        return self._owner.submit(
            lambda now: core.all_reduce(
                view, dtype, stream=stream, tolerance=told, critical=critical, squared_norm=norm,
                now=now,
            )
        )  # fmt: skip

    @property
    def chunk_sizes(self) -> set[int]:
        """Bytes of a full datagram's payload on the paths to the other ranks.  `connect` needs one
        size for all of them."""
        return self._owner.chunk_sizes

    @property
    def error(self) -> DBLPError | None:
        """Why the job has ended; None while it goes on."""
        return self._owner.core.error

    def close(self) -> None:
        """Says goodbye and releases sockets and thread; idempotent, never waits for other ranks."""
        self._thread.finish(self._owner.shut_down(), CLOSE_TIMEOUT_S)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_owner") and not sys.is_finalizing():
            self.close()


def _candidates(entry: Address | Sequence[Address]) -> list[tuple[str, int]]:
    """One address, or several, as (host, port) pairs."""
    if isinstance(entry, str) or (isinstance(entry, tuple) and _is_pair(entry)):
        return [parse_address(cast(Address, entry))]
    return [parse_address(cast(Address, one)) for one in entry]


def _is_pair(entry: tuple[Any, ...]) -> bool:
    return len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], int)


def _check_integer(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value!r}: choose an integer from {lowest} to {highest}")
