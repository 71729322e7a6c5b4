"""The ranks of a mesh in one process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import dblp
from dblp.config import TransportConfig
from tests.integration.cluster import LIMIT_S, results

__all__ = ["MeshGroup", "connect_all"]


QUICK = TransportConfig(connect_timeout_s=2.0, timeout_s=15)


def open_meshes(stack: ExitStack, *options: dict[str, Any]) -> list[dblp.Mesh]:
    """One mesh per entry, listening."""
    return [
        stack.enter_context(
            dblp.Mesh(
                **{"rank": rank, "world": len(options), "listen": "127.0.0.1:0", "config": QUICK}
                | each
            )
        )
        for rank, each in enumerate(options)
    ]


class MeshGroup:
    """`world` meshes on loopback, connected; `with` closes them all."""

    def __init__(self, world: int, config: TransportConfig, **options: Any) -> None:
        with ExitStack() as stack:
            self.meshes = [
                stack.enter_context(
                    dblp.Mesh(
                        rank=rank, world=world, listen="127.0.0.1:0", config=config, **options
                    )
                )
                for rank in range(world)
            ]
            addresses = [mesh.address for mesh in self.meshes]
            with ThreadPoolExecutor(world) as pool:
                list(pool.map(lambda mesh: mesh.connect(addresses), self.meshes))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def start(
        self, buffers: Sequence[Any], stream: int = 0, **options: Any
    ) -> list[Future[dblp.ExchangeReport]]:
        """Every rank starts an all-reduce of its buffer."""
        return [
            mesh.all_reduce_async(buffer, stream=stream, **options)
            for mesh, buffer in zip(self.meshes, buffers, strict=True)
        ]

    def all_reduce(
        self, buffers: Sequence[Any], stream: int = 0, **options: Any
    ) -> list[dblp.ExchangeReport]:
        """One round of all ranks, in place."""
        return results(self.start(buffers, stream, **options))


def connect_all(
    meshes: Sequence[dblp.Mesh], addresses: Sequence[Any]
) -> list[BaseException | None]:
    """What `connect` raised on each rank."""

    def attempt(mesh: dblp.Mesh) -> BaseException | None:
        try:
            mesh.connect(addresses)
        except dblp.DBLPError as error:
            return error
        return None

    with ThreadPoolExecutor(len(meshes)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(attempt, m) for m in meshes]]
