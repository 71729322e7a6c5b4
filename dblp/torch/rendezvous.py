"""How the ranks find each other: through the process group that the job has already.

Everything is exchanged by live collectives.  Nothing is left in a store that a later job, or a
later incarnation of this one, could read: the one key that is used there holds a nonce of rank 0.
The nonce is also the fingerprint of every connection, so that a port that belongs to somebody else
by now is noticed.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ..collective.base import Collective
from ..collective.mesh import Mesh
from ..collective.server_core import MissingRule
from ..collective.server_decisions import Downlink
from ..config import MTU_MIN, MTU_WITHIN_HOST
from ..errors import ConfigError, DBLPError, PeerLostError
from ..io.control import format_address
from ..io.interfaces import (
    IFNAME_VARIABLE,
    advertised_addresses,
    common_family,
    host_key,
    path_mtu,
)
from .group import RankGroup, lost
from .options import ExchangeOptions
from .server_link import ServerLink

__all__ = ["Meeting", "meet"]

LOOPBACK = "127.0.0.1"

log = logging.getLogger("dblp")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Introduction:
    """What each rank tells all others first."""

    nonce: str
    host: str
    addresses: list[str]
    """At which other hosts may reach this one, best first."""
    problem: str
    """Why there are none."""
    wish: bool
    """Whether DBLP_SOCKET_IFNAME chose them."""
    terms: dict[str, str]


def _introduction(terms: Mapping[str, str]) -> _Introduction:
    addresses, problem = [], ""
    try:
        addresses = advertised_addresses(os.environ.get("MASTER_ADDR"))
    except ConfigError as error:
        problem = str(error)
    return _Introduction(
        nonce=secrets.token_hex(8),
        host=host_key(),
        addresses=addresses,
        problem=problem,
        wish=bool(os.environ.get(IFNAME_VARIABLE)),
        terms=dict(terms),
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks of one exchange, and how to connect them."""

    group: RankGroup
    options: ExchangeOptions
    hosts: list[str]
    """`host_key` of every rank."""
    tables: list[list[str]]
    """Addresses of every rank's host, for all ranks, best first."""
    nonce: str

    @property
    def addresses(self) -> list[str]:
        """Of this host."""
        return self.tables[self.group.rank]

    def connect(self) -> Collective:
        """Connects all ranks; collective.

        Shards are cut alike for all ranks, so all paths carry datagrams of the same size: the
        smallest that any rank knows to fit.  A path that turns out to take less makes all of them
        connect again with what every path takes (field problem 6).

        Raises:
            DBLPError: on all ranks, when one of them cannot connect.
        """
        if self.options.address is not None:
            return self._agreed(self._join_server)
        mtu = min(self.group.gather(self._largest_mtu()))
        mesh = self._connect(mtu, last=mtu == MTU_MIN)
        if mesh is None:
            log.warning(
                "not every path between the ranks takes packets of %d bytes, so all use %d: set "
                "TransportConfig(mtu=...) to the smallest path MTU if that is more",
                mtu,
                MTU_MIN,
            )
            mesh = self._connect(MTU_MIN, last=True)
        assert mesh is not None
        return mesh

    def _largest_mtu(self) -> int:
        """Bytes of the packets that this rank would use by itself."""
        config, here = self.options.config, self.hosts[self.group.rank]
        mtu = config.packet_bytes
        if config.mtu is None and set(self.hosts) == {here}:
            mtu = min(MTU_WITHIN_HOST, path_mtu(LOOPBACK) or mtu)
        for rank in range(self.options.serving(self.group.world)):
            if self.hosts[rank] != here:
                mtu = min(mtu, path_mtu(self.tables[rank][0]) or mtu)
        return max(mtu, MTU_MIN)

    def _connect(self, mtu: int, *, last: bool) -> Mesh | None:
        """Connects with packets of up to `mtu` bytes; None: some paths take less than others, and
        this is not the `last` try."""
        mesh = self._agreed(lambda: self._open(mtu))
        try:
            own = [format_address(address, mesh.port) for address in self.addresses]
            tables: list[list[str]] = self.group.gather(own)
            for rank, host in enumerate(self.hosts):
                nearest = _by_loopback(tables[rank][0])
                if host == self.hosts[self.group.rank] and nearest not in tables[rank]:
                    tables[rank].append(nearest)
            sizes: set[int] = set()

            def connect() -> None:
                try:
                    mesh.connect(tables)
                finally:
                    sizes.update(mesh.chunk_sizes)

            try:
                self._agreed(connect)
            except DBLPError:
                if last or not self._differ(sizes):
                    raise
                mesh.close()
                return None
        except BaseException:
            mesh.close()
            raise
        return mesh

    def _differ(self, sizes: set[int]) -> bool:
        """Whether some paths between the ranks carry chunks of another size than others."""
        try:
            found: list[set[int]] = self.group.gather(sizes)
        except DBLPError:
            return False  # a rank is gone, and that was the trouble
        return len(set().union(*found)) > 1

    def _open(self, mtu: int) -> Mesh:
        """The listening sockets: on loopback if that is what is told to others, else on all
        interfaces, as a peer may come by another one than expected."""
        options, host = self.options, LOOPBACK
        if self.addresses != [LOOPBACK]:
            host = "::" if ":" in self.addresses[0] else "0.0.0.0"
        port = options.port + int(os.environ.get("LOCAL_RANK", "0")) if options.port else 0
        return Mesh(
            rank=self.group.rank,
            world=self.group.world,
            servers=options.serving(self.group.world),
            listen=format_address(host, port),
            config=replace(options.config, mtu=mtu),
            downlink=cast(Downlink, options.downlink),
            rule=cast(MissingRule, options.rule),
            fingerprint=self.nonce,
            impairment=options.impairment,
        )

    def _join_server(self) -> Collective:
        options = self.options
        assert options.address is not None
        link = ServerLink(
            options.address,
            rank=self.group.rank,
            world=self.group.world,
            config=options.config,
            fingerprint=self.nonce,
            impairment=options.impairment,
        )
        if (link.downlink == "lossy") != options.replicas_may_drift:
            link.close()
            raise ConfigError(
                f"the server at {options.address} has downlink={link.downlink!r}, the ranks "
                f"{options.downlink!r}: replicas drift or they do not, so give the same"
            )
        return link

    def _agreed(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, if it succeeded on all ranks; else an error on all of them."""
        result: Any = None
        problem: DBLPError | None = None
        try:
            result = work()
        except DBLPError as error:
            problem = error
        try:
            problems = self.group.gather(None if problem is None else str(problem))
        except DBLPError as error:
            raise (problem or error) from error
        if problem is not None:
            raise problem
        for rank, text in enumerate(problems):
            if text is not None:
                if hasattr(result, "close"):
                    result.close()
                raise PeerLostError(f"rank {rank} could not connect: {text}")
        return cast(_Result, result)


def meet(
    process_group: dist.ProcessGroup | None, options: ExchangeOptions, terms: Mapping[str, str]
) -> Meeting:
    """Brings the ranks of `process_group` together; collective.

    Waits for the other ranks as long as the process group does: one may still load its data.

    Args:
        process_group: the ranks; None: all.
        terms: what must be equal on all ranks, by name, besides the options.

    Raises:
        ConfigError: there is no process group, or the ranks were given different options, or a
            host has no address; on all ranks.
        PeerLostError: not all ranks come.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError(
            "there is no process group yet: call torch.distributed.init_process_group first"
        )
    process_group = process_group or dist.group.WORLD
    rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    options.serving(world)
    found: list[Any] = [None] * world
    try:
        mine = _introduction({**options.terms(), **terms})
        dist.all_gather_object(found, mine, group=process_group)
    except RuntimeError as error:
        raise lost(error) from error
    all_ranks = cast(list[_Introduction], found)
    _compare([item.terms for item in all_ranks])
    one_host = all(item.host == mine.host and not item.wish for item in all_ranks)
    for other, item in enumerate(all_ranks):
        if item.problem and not one_host:
            raise ConfigError(f"rank {other}: {item.problem}")
    tables = [[LOOPBACK]] * world
    if not one_host:
        tables = common_family([item.addresses for item in all_ranks])
    config, nonce = options.config, all_ranks[0].nonce
    group = RankGroup(
        f"dblp/{nonce}",
        rank,
        world,
        host=tables[rank][0],
        timeout_s=config.connect_timeout_s + config.timeout_s,
    )
    return Meeting(group, options, [item.host for item in all_ranks], tables, nonce)


def _by_loopback(address: str) -> str:
    """The same port for a process that shares the network stack."""
    host, _, port = address.rpartition(":")
    return f"[::1]:{port}" if host.startswith("[") else f"{LOOPBACK}:{port}"


def _compare(found: list[dict[str, str]]) -> None:
    """The same ConfigError on all ranks when their terms differ."""
    for rank, terms in enumerate(found):
        for name in found[0]:
            if found[0][name] != terms.get(name):
                raise ConfigError(
                    f"rank {rank} has {name} {terms.get(name)}, rank 0 has {found[0][name]}: give "
                    "all ranks the same"
                )
