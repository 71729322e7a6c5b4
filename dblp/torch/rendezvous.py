"""How the ranks find each other: through the process group that the job has already.

Everything is exchanged by live collectives on a gloo group of our own, made for this meeting.
Nothing is left in a store that a later job, or a later incarnation of this one, could read.  A
nonce from rank 0 goes into the fingerprint of every connection, so that a port that now belongs to
somebody else is noticed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ..collective.base import Collective
from ..collective.mesh import Mesh
from ..errors import ConfigError, DBLPError, PeerLostError
from ..io.control import format_address
from ..io.interfaces import IFNAME_VARIABLE, advertised_addresses, host_key
from .options import ExchangeOptions
from .recovery import lost
from .server_link import ServerLink

__all__ = ["Meeting", "meet"]

LOOPBACK = "127.0.0.1"

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks of one exchange, and how to connect them."""

    group: dist.ProcessGroup
    """A gloo group of our own with the same ranks, for everything small."""
    rank: int
    world: int
    options: ExchangeOptions

    def connect(self) -> Collective:
        """Connects all ranks; collective.

        Raises:
            DBLPError: on all ranks, when one of them cannot connect.
        """
        nonce: str = self._gathered(secrets.token_hex(8))[0]
        if self.options.address is not None:
            return self._agreed(lambda: self._join_server(nonce))
        hosts: list[str] = self._gathered(host_key())
        wish = bool(os.environ.get(IFNAME_VARIABLE))
        one_host = all(host == hosts[0] for host in hosts) and not wish
        mesh, own = self._agreed(lambda: self._open(one_host, nonce))
        try:
            tables: list[list[str]] = self._gathered(own)
            if not one_host and not wish:
                tables = [
                    [_by_loopback(table[0]), *table] if host == hosts[self.rank] else table
                    for host, table in zip(hosts, tables, strict=True)
                ]
            self._agreed(lambda: mesh.connect(tables))
        except BaseException:
            mesh.close()
            raise
        return mesh

    def _open(self, one_host: bool, nonce: str) -> tuple[Mesh, list[str]]:
        """The listening sockets, and where others may find them.

        On one host they listen on loopback, else on all interfaces: a peer may come by another one
        than expected.
        """
        options = self.options
        addresses = [LOOPBACK]
        if not one_host:
            addresses = advertised_addresses(os.environ.get("MASTER_ADDR"))
        wildcard = "::" if ":" in addresses[0] else "0.0.0.0"
        port = options.port + int(os.environ.get("LOCAL_RANK", "0")) if options.port else 0
        mesh = Mesh(
            rank=self.rank,
            world=self.world,
            servers=options.serving(self.world),
            listen=format_address(LOOPBACK if one_host else wildcard, port),
            config=options.config,
            downlink=options.downlink,
            rule=options.rule,
            fingerprint=nonce,
            impairment=options.impairment,
        )
        return mesh, [format_address(address, mesh.port) for address in addresses]

    def _join_server(self, nonce: str) -> Collective:
        options = self.options
        assert options.address is not None
        return ServerLink(
            options.address,
            rank=self.rank,
            world=self.world,
            config=options.config,
            fingerprint=nonce,
            impairment=options.impairment,
        )

    def _gathered(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        found: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(found, value, group=self.group)
        except RuntimeError as error:
            raise lost(error) from error
        return found

    def _agreed(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, if it succeeded on all ranks; else an error on all of them."""
        result: Any = None
        problem: DBLPError | None = None
        try:
            result = work()
        except DBLPError as error:
            problem = error
        try:
            problems = self._gathered(None if problem is None else str(problem))
        except DBLPError as error:
            raise (problem or error) from error
        if problem is not None:
            raise problem
        for rank, text in enumerate(problems):
            if text is not None:
                for item in result if isinstance(result, tuple) else (result,):
                    if hasattr(item, "close"):
                        item.close()
                raise PeerLostError(f"rank {rank} could not connect: {text}")
        return cast(_Result, result)

    def close(self) -> None:
        """Gives the group back; local."""
        with contextlib.suppress(Exception):  # the process group may be gone, which is as good
            dist.destroy_process_group(self.group)


def meet(
    process_group: dist.ProcessGroup | None, options: ExchangeOptions, terms: Mapping[str, str]
) -> Meeting:
    """Brings the ranks of `process_group` together; collective.

    Args:
        process_group: the ranks; None: all.
        terms: what must be equal on all ranks, by name, besides the options.

    Raises:
        ConfigError: there is no process group, or the ranks were given different options.
        PeerLostError: not all ranks come, within connect_timeout_s and timeout_s together.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError(
            "there is no process group yet: call torch.distributed.init_process_group first"
        )
    ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
    config = options.config
    try:
        group = dist.new_group(
            ranks,
            timeout=timedelta(seconds=config.connect_timeout_s + config.timeout_s),
            backend="gloo",
            use_local_synchronization=True,
        )
    except RuntimeError as error:
        raise lost(error) from error
    meeting = Meeting(group, dist.get_rank(group), len(ranks), options)
    try:
        options.serving(meeting.world)
        _compare(meeting._gathered({**options.terms(), **terms}))
    except DBLPError:
        meeting.close()
        raise
    return meeting


def _by_loopback(address: str) -> str:
    """The same port for a process that shares the network stack: nothing is nearer."""
    host, _, port = address.rpartition(":")
    return f"[::1]:{port}" if host.startswith("[") else f"{LOOPBACK}:{port}"


def _compare(found: list[Mapping[str, str]]) -> None:
    """The same ConfigError on all ranks when their terms differ."""
    for rank, terms in enumerate(found):
        for name in found[0].keys() | terms.keys():
            first, other = found[0].get(name), terms.get(name)
            if first != other:
                raise ConfigError(
                    f"rank {rank} has {name} {other}, rank 0 has {first}: give all ranks the same"
                )
