"""The endpoints from within asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import dblp
from dblp import aio
from dblp.config import TransportConfig
from dblp.errors import LocalProtocolError, PeerLostError, RemoteProtocolError, RoundTimeoutError
from tests.integration.cluster import gradients, rank_order_mean


async def test_all_reduce(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=2, config=config) as server:
        async with (
            aio.Worker(server.address, rank=0, config=config) as first,
            aio.Worker(server.address, rank=1, world=2, config=config) as second,
        ):
            assert (first.rank, second.rank, second.world) == (0, 1, 2)
            for size in (0, 1, 50_000):
                arrays = gradients(2, size)
                wanted = rank_order_mean(arrays).tobytes()
                reports = await asyncio.gather(
                    first.all_reduce(arrays[0]), second.all_reduce(arrays[1])
                )
                assert [array.tobytes() for array in arrays] == [wanted, wanted]
                assert all(report.uplink.missing == 0 for report in reports)


async def test_the_order_of_the_calls_is_the_order_of_the_rounds(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server:
        async with aio.Worker(server.address, rank=0, config=config) as worker:
            arrays = [np.full(1000, number, np.float32) for number in range(30)]
            reports = await asyncio.gather(*map(worker.all_reduce, arrays))
            assert [report.uplink.round_id for report in reports] == list(range(30))


async def test_the_callers_loop_is_not_blocked(config: TransportConfig) -> None:
    """A round that waits for another rank leaves the loop to others."""
    with dblp.ParameterServer.serve_in_thread(workers=2, config=config) as server:
        async with (
            aio.Worker(server.address, rank=0, config=config) as first,
            aio.Worker(server.address, rank=1, config=config) as second,
        ):
            waiting = asyncio.create_task(first.all_reduce(np.ones(10, np.float32)))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            await second.all_reduce(np.ones(10, np.float32))
            await waiting


async def test_send_and_recv(config: TransportConfig) -> None:
    async with (
        aio.Listener(config=config) as listener,
        aio.Peer(listener.address, config=config) as here,
        await listener.accept() as there,
    ):
        sent, got = np.arange(9000), [np.zeros(9000, int) for _ in range(2)]
        reports = await asyncio.gather(
            here.send(sent), there.recv(got[0]), there.send(sent), here.recv(got[1], "0.8%")
        )
        assert (got[0] == sent).all()
        assert reports[3].tolerance == "0.8%"


async def test_errors_come_through(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server:
        async with aio.Worker(server.address, rank=0, config=config) as worker:
            with pytest.raises(LocalProtocolError, match="int64"):
                await worker.all_reduce(np.ones(3, np.int64))
            with pytest.raises(RemoteProtocolError, match="taken"):
                async with aio.Worker(server.address, rank=0, config=config):
                    pass
            server.close()
            with pytest.raises(PeerLostError):
                await worker.all_reduce(np.ones(3, np.float32))


async def test_before_and_after_async_with(config: TransportConfig) -> None:
    listener = aio.Listener(config=config)
    with pytest.raises(LocalProtocolError, match="async with"):
        await listener.accept()
    await listener.close()
    async with listener:
        await listener.close()
        await listener.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            await listener.accept()


async def test_a_cancelled_await_leaves_the_round_alone(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=2, config=config) as server:
        async with (
            aio.Worker(server.address, rank=0, config=config) as first,
            aio.Worker(server.address, rank=1, config=config) as second,
        ):
            arrays = gradients(2, 1000)
            wanted = rank_order_mean(arrays)
            task = asyncio.create_task(first.all_reduce(arrays[0]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await second.all_reduce(arrays[1])
            follow: list[Any] = [np.ones(3, np.float32) for _ in range(2)]
            await asyncio.gather(first.all_reduce(follow[0]), second.all_reduce(follow[1]))
            assert (arrays[0] == wanted).all(), "the round before ended first"


async def test_nobody_comes_and_a_cancelled_accept(config: TransportConfig) -> None:
    async with aio.Listener(config=config) as listener:
        with pytest.raises(RoundTimeoutError, match=listener.address):
            await listener.accept(timeout_s=0.03)
        task = asyncio.create_task(listener.accept())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with aio.Peer(listener.address, config=config), await listener.accept():
            pass
