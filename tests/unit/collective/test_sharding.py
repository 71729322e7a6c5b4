"""Shards cover every byte once, on chunk boundaries, in equal parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.collective.sharding import ShardPlan
from dblp.errors import ConfigError

plans = st.builds(ShardPlan, st.integers(1, 40), st.sampled_from([8, 64, 1448, 8944]))
sizes = st.one_of(st.integers(0, 100_000), st.integers(0, 64 << 30))
streams = st.integers(0, 65_535)


@given(plans, sizes, streams)
def test_every_byte_has_one_server(plan: ShardPlan, nbytes: int, stream: int) -> None:
    shards = plan.shards(nbytes, stream)
    place = 0
    for shard in shards:
        assert shard.start == place < shard.stop
        place = shard.stop
    assert place == nbytes
    servers = [shard.server for shard in shards]
    assert len(set(servers)) == len(servers)
    assert all(0 <= server < plan.servers for server in servers)


@given(plans, sizes, streams)
def test_shards_are_whole_chunks_and_balanced(plan: ShardPlan, nbytes: int, stream: int) -> None:
    shards = plan.shards(nbytes, stream)
    for shard in shards[:-1]:
        assert shard.stop % plan.chunk_bytes == 0
    counts = [-(-(shard.stop - shard.start) // plan.chunk_bytes) for shard in shards]
    counts += [0] * (plan.servers - len(shards))
    assert max(counts) - min(counts) <= 1


@given(plans, st.integers(1, 8))
def test_small_buffers_of_different_streams_spread(plan: ShardPlan, nbytes: int) -> None:
    owners = [plan.shards(nbytes, stream)[0].server for stream in range(plan.servers)]
    assert sorted(owners) == list(range(plan.servers))


def test_nothing_has_no_shards() -> None:
    assert ShardPlan(3, 64).shards(0, 5) == ()


@pytest.mark.parametrize(("servers", "chunk_bytes"), [(0, 64), (3, 0)])
def test_bad_numbers(servers: int, chunk_bytes: int) -> None:
    with pytest.raises(ConfigError, match="cut"):
        ShardPlan(servers, chunk_bytes)
