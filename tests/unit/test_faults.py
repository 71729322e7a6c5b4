"""The fault injector, without sockets."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest

from dblp import wire
from dblp.errors import ConfigError
from dblp.faults import (
    REMEMBERED_DATAGRAMS,
    REORDER_HOLD_S,
    REORDER_SPAN_MAX,
    GilbertElliott,
    Impairment,
    ImpairmentState,
    flip_bit,
    round_of,
)


def state_of(fastpath: ModuleType, salt: int = 0, **plan: Any) -> ImpairmentState:
    channel = fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=64)
    return ImpairmentState(Impairment(**plan), channel, salt)


def datagrams(fastpath: ModuleType, count: int, round_id: int = 0) -> list[bytes]:
    return [
        fastpath.pack_datagram(wire.KIND_DATA, 0, 0, 1, round_id, chunk, 2, bytes(64))
        for chunk in range(count)
    ]


def test_nothing_happens_without_faults(fastpath: ModuleType) -> None:
    state = state_of(fastpath)
    sent = datagrams(fastpath, 50)
    assert state.apply(sent, now=0.0) == sent
    assert state.next_deadline() is None
    assert state.due(now=1.0) == []


def test_loss_alone_is_the_fast_paths_business() -> None:
    assert Impairment().loss_only
    assert Impairment(uniform=0.5, bursts={3: 0.7}).loss_only
    for other in ("reorder", "duplicate", "corrupt", "stale", "delay"):
        assert not Impairment(**{other: 0.1}).loss_only
    assert not Impairment(gilbert_elliott=GilbertElliott(0.1, 0.1)).loss_only


@pytest.mark.parametrize("salt", [0, 1])
def test_equal_seeds_and_arrivals_give_equal_faults(fastpath: ModuleType, salt: int) -> None:
    faults = {"reorder": 0.3, "duplicate": 0.1, "corrupt": 0.1, "stale": 0.2, "delay": 0.2}
    sent = datagrams(fastpath, 300)
    runs = []
    for seed in (5, 5, 6):
        state = state_of(fastpath, salt, seed=seed, **faults)
        runs.append([state.apply(sent[i : i + 7], now=i / 1e4) for i in range(0, 300, 7)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_endpoints_of_one_plan_draw_differently(fastpath: ModuleType) -> None:
    sent = datagrams(fastpath, 200)
    one, two = (state_of(fastpath, salt, duplicate=0.5).apply(sent, now=0.0) for salt in (1, 2))
    assert one != two


def test_duplicates(fastpath: ModuleType) -> None:
    sent = datagrams(fastpath, 400)
    assert state_of(fastpath, duplicate=1.0).apply(sent, now=0.0) == [d for d in sent for _ in "12"]
    some = state_of(fastpath, duplicate=0.25).apply(sent, now=0.0)
    assert 400 + 50 < len(some) < 400 + 150


def test_corruption_flips_one_bit(fastpath: ModuleType) -> None:
    sent = datagrams(fastpath, 100)
    got = state_of(fastpath, corrupt=1.0).apply(sent, now=0.0)
    for before, after in zip(sent, got, strict=True):
        changed = int.from_bytes(before, "big") ^ int.from_bytes(after, "big")
        assert changed.bit_count() == 1
        assert fastpath.parse_datagram(after) is None
    assert state_of(fastpath, corrupt=1.0).apply([b""], now=0.0) == [b""]
    assert flip_bit(b"\x00\x00", 9) == b"\x00\x02"


def test_reordering_is_bounded_in_number(fastpath: ModuleType) -> None:
    sent = datagrams(fastpath, 1000)
    state = state_of(fastpath, reorder=0.3)
    got = state.apply(sent, now=0.0)
    got += state.due(now=1.0)
    assert sorted(got) == sorted(sent)
    assert got != sent
    place = {datagram: index for index, datagram in enumerate(sent)}
    moved = [index - place[datagram] for index, datagram in enumerate(got)]
    assert max(moved) <= REORDER_SPAN_MAX
    assert sum(shift > 0 for shift in moved) > 100


def test_a_reordered_datagram_comes_though_nothing_follows(fastpath: ModuleType) -> None:
    state = state_of(fastpath, reorder=1.0)
    sent = datagrams(fastpath, 1)
    assert state.apply(sent, now=5.0) == []
    assert state.next_deadline() == 5.0 + REORDER_HOLD_S
    assert state.due(now=5.0) == []
    assert state.due(now=5.0 + REORDER_HOLD_S) == sent
    assert state.next_deadline() is None


def test_delay(fastpath: ModuleType) -> None:
    state = state_of(fastpath, delay=1.0, delay_s=0.01)
    sent = datagrams(fastpath, 100)
    assert state.apply(sent, now=0.0) == []
    due = state.next_deadline()
    assert due is not None
    assert 0 <= due <= 0.01
    early = state.due(now=0.005)
    late = state.due(now=0.01)
    assert 20 < len(early) < 80
    assert sorted(early + late) == sorted(sent)


def test_stale_replays_come_from_earlier_data(fastpath: ModuleType) -> None:
    state = state_of(fastpath, stale=1.0)
    old = datagrams(fastpath, 20, round_id=1)
    new = datagrams(fastpath, 20, round_id=9)
    state.apply(old, now=0.0)
    got = state.apply(new, now=0.0)
    assert len(got) == 40
    assert set(new) <= set(got)
    assert {round_of(datagram) for datagram in got} == {1, 9}
    assert set(got) <= set(old + new)


def test_control_datagrams_are_not_replayed_and_memory_is_bounded(fastpath: ModuleType) -> None:
    state = state_of(fastpath, stale=1.0)
    control = fastpath.pack_datagram(wire.KIND_CONTROL, 0, 0, 1, 0, 0, 2, b"frame")
    assert state.apply([control] * 5 + [b"", b"x"], now=0.0) == [control] * 5 + [b"", b"x"]
    state.apply(datagrams(fastpath, 3 * REMEMBERED_DATAGRAMS), now=0.0)
    assert len(state._memory) == REMEMBERED_DATAGRAMS


def test_gilbert_elliott_loses_in_runs(fastpath: ModuleType) -> None:
    model = GilbertElliott(to_bad=0.02, to_good=0.2)
    sent = datagrams(fastpath, 5000)
    got = set(state_of(fastpath, gilbert_elliott=model).apply(sent, now=0.0))
    lost = [datagram not in got for datagram in sent]
    share = sum(lost) / len(lost)
    assert 0.04 < share < 0.16  # 0.02 / 0.22 = 9 % of the time is bad
    pairs = sum(a and b for a, b in itertools.pairwise(lost))
    assert pairs / sum(lost) > 0.6  # independent loss would give `share`


@pytest.mark.parametrize(
    ("model", "arrives"),
    [
        (GilbertElliott(0.0, 0.0), 100),
        (GilbertElliott(0.0, 0.0, loss_good=1.0), 0),
        (GilbertElliott(1.0, 0.0), 0),
        (GilbertElliott(1.0, 0.0, loss_bad=0.0), 100),
    ],
)
def test_gilbert_elliott_at_its_limits(
    fastpath: ModuleType, model: GilbertElliott, arrives: int
) -> None:
    got = state_of(fastpath, gilbert_elliott=model).apply(datagrams(fastpath, 100), now=0.0)
    assert len(got) == arrives


# --- loss and bursts, which the channel does ---


def loss_of(state: ImpairmentState, fastpath: ModuleType, round_id: int, count: int = 400) -> float:
    channel = state._channel
    before = channel.counters()["injected_loss"]
    channel.ingest(datagrams(fastpath, count, round_id), 0)
    return (channel.counters()["injected_loss"] - before) / count


def test_uniform_loss(fastpath: ModuleType) -> None:
    assert loss_of(state_of(fastpath), fastpath, 0) == 0
    assert 0.2 < loss_of(state_of(fastpath, uniform=0.3), fastpath, 0) < 0.4
    assert loss_of(state_of(fastpath, uniform=1.0), fastpath, 0) == 1


@pytest.mark.parametrize("uniform", [0.0, 0.1])
def test_a_burst_takes_the_place_of_the_uniform_loss(fastpath: ModuleType, uniform: float) -> None:
    state = state_of(fastpath, uniform=uniform, bursts={3: 0.7})
    for round_id in range(6):
        state.open_round(round_id)
        state.open_round(round_id)
        wanted = 0.7 if round_id == 3 else uniform
        assert abs(loss_of(state, fastpath, round_id) - wanted) < 0.1


def test_bursts_one_after_the_other(fastpath: ModuleType) -> None:
    state = state_of(fastpath, bursts={1: 0.3, 2: 0.9, 4: 1.0})
    shares = []
    for round_id in range(6):
        state.open_round(round_id)
        shares.append(loss_of(state, fastpath, round_id))
    assert [round(share * 10) for share in shares] == [0, 3, 9, 0, 10, 0]


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", None])
@pytest.mark.parametrize("name", ["uniform", "reorder", "duplicate", "corrupt", "stale", "delay"])
def test_rates_are_probabilities(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Impairment(**{name: value})


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf"), "1"])
def test_a_delay_is_a_time(delay_s: Any) -> None:
    with pytest.raises(ConfigError, match="delay_s"):
        Impairment(delay=0.1, delay_s=delay_s)


def test_bursts_and_models_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"bursts\[7\]"):
        Impairment(bursts={7: 70})
    with pytest.raises(ConfigError, match="to_good"):
        GilbertElliott(0.1, 2.0)
