"""A parameter server and its workers in virtual time, for the tests of the collective core."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from dblp import fastpath
from dblp.collective.server_core import ServerCore
from dblp.collective.worker_core import FinishedRound, OpenRound, WorkerCore
from dblp.config import TransportConfig
from dblp.phase import FixedTolerance, TolerancePolicy
from dblp.stats import RoundReport
from dblp.wire import Frame

from .virtual_net import CHUNK_BYTES, Endpoint, LinkModel, VirtualNet, make_channel, make_session

ITEM = {"float16": np.float16, "float32": np.float32, "float64": np.float64, "bfloat16": np.uint16}


def to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values in the type in which the mean is accumulated."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array if dtype == "float64" else array.astype(np.float32)


def from_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded once, to nearest even."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(ITEM[dtype])


def gradient(rank: int, count: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, rank, count]).standard_normal(count)
    if dtype == "bfloat16":
        return from_float32(values.astype(np.float32), dtype)
    return values.astype(ITEM[dtype])


def rank_order_mean(gradients: Sequence[np.ndarray], dtype: str = "float32") -> np.ndarray:
    """The reference: added in rank order, divided once."""
    total = to_float32(gradients[0], dtype).copy()
    for other in gradients[1:]:
        total += to_float32(other, dtype)
    return from_float32(total / total.dtype.type(len(gradients)), dtype)


def masked_mean(
    gradients: Sequence[np.ndarray], delivered: Sequence[np.ndarray], *, contributors: bool
) -> np.ndarray:
    """The float32 reference under loss: `delivered[rank][chunk]` says which chunks count."""
    count = gradients[0].size
    chunk = np.arange(count) * 4 // CHUNK_BYTES
    total = np.zeros(count, np.float32)
    divisor = np.zeros(count, np.float32)
    for values, mask in zip(gradients, delivered, strict=True):
        present = mask[chunk]
        total[present] += values[present]
        divisor += present
    if not contributors:
        divisor[:] = len(gradients)
    divisor[divisor == 0] = 1
    return total / divisor


class Cluster:
    """One `ServerCore`, `world` `WorkerCore`s, and the links between them."""

    def __init__(
        self,
        world: int,
        *,
        policy: TolerancePolicy | None = None,
        config: TransportConfig | None = None,
        uplink: LinkModel | None = None,
        downlink_link: LinkModel | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        seed: int = 0,
        first_round: int = 0,
        **server_options: object,
    ) -> None:
        self.world = world
        self.config = config or TransportConfig()
        policy = policy or FixedTolerance("0%")
        self.net = VirtualNet(seed)
        self.server = ServerCore(
            world=world, policy=policy, config=self.config, rng=random.Random(seed),
            first_round=first_round, **server_options,
        )  # fmt: skip
        self.workers: list[WorkerCore] = []
        self.server_ends: list[Endpoint] = []
        self.worker_ends: list[Endpoint] = []
        self.finished: list[FinishedRound] = []
        self.reports: list[RoundReport] = []
        for rank in range(world):
            links = (uplink or LinkModel(), downlink_link or LinkModel())
            self._add(rank, policy, *links, chunk_bytes, first_round)
        self.net.next_timeouts.append(self.server.next_timeout)
        self.net.on_timeouts.append(lambda now: self.server.on_timeout(now=now))

    def _add(
        self, rank: int, policy: TolerancePolicy, up: LinkModel, down: LinkModel, chunk_bytes: int,
        first_round: int,
    ) -> None:  # fmt: skip
        server_channel = make_channel(1000 + rank, chunk_bytes=chunk_bytes)
        worker_channel = make_channel(1000 + rank, chunk_bytes=chunk_bytes)
        server_session = make_session(server_channel, self.config, f"rank {rank}", rank)
        worker_session = make_session(worker_channel, self.config, "the server", 100 + rank)
        worker = WorkerCore(
            rank=rank, world=self.world, session=worker_session, config=self.config,
            tolerance=policy.initial().tolerance, first_round=first_round,
        )  # fmt: skip

        def on_server_events(now: float) -> None:
            self.server.on_events(rank, now=now)
            self.reports += self.server.take_reports()
            for to, frame in self.server.take_broadcast():
                self.net.send_reliable(self.server_ends[to], frame)

        def on_worker_events(now: float) -> None:
            worker.on_events(now=now)
            self.finished += worker.take_finished()

        server_end = Endpoint(
            f"server→{rank}", server_session, server_channel, down, on_server_events
        )
        worker_end = Endpoint(
            f"{rank}→server", worker_session, worker_channel, up, on_worker_events
        )
        self.net.join(server_end, worker_end)
        self.net.next_timeouts.append(worker.next_timeout)
        self.net.on_timeouts.append(lambda now: worker.on_timeout(now=now))
        self.workers.append(worker)
        self.server_ends.append(server_end)
        self.worker_ends.append(worker_end)
        self.server.attach(rank, server_session, now=0.0)

    def start(
        self, rank: int, array: np.ndarray, dtype: str = "float32", *, stream: int = 0
    ) -> OpenRound:
        view = memoryview(array.reshape(-1).view(np.uint8))
        return self.workers[rank].all_reduce(
            view, dtype, stream=stream, now=self.net.now,
            squared_norm=fastpath.squared_norm(array, dtype),
        )  # fmt: skip

    def finish(self, rounds: int, *, limit_s: float = 100.0) -> list[FinishedRound]:
        """Runs until `rounds` more rounds have ended; returns them, all without error."""
        ended = self.finish_any(rounds, limit_s=limit_s)
        for one in ended:
            assert one.error is None, one.error
        return ended

    def finish_any(self, rounds: int, *, limit_s: float = 100.0) -> list[FinishedRound]:
        start = len(self.finished)
        self.net.run(lambda: len(self.finished) >= start + rounds, limit_s=limit_s)
        return self.finished[start:]

    def all_reduce(
        self, arrays: Sequence[np.ndarray], dtype: str = "float32", *, stream: int = 0
    ) -> list[FinishedRound]:
        """One round on all ranks; results by rank."""
        for rank, array in enumerate(arrays):
            self.start(rank, array, dtype, stream=stream)
        ended = self.finish(self.world)
        return sorted(ended, key=lambda one: one.uplink.rank)

    def reliable_frames(self) -> list[Frame]:
        return [
            frame for end in (*self.server_ends, *self.worker_ends) for frame in end.reliable_frames
        ]
