"""How long a first pass is."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dblp import Tolerance
from dblp.config import TransportConfig
from dblp.proto.first_pass import FirstPass

from .pair import CHUNK_BYTES, Model, Pair

P = Tolerance.of("40.8%")


def path() -> SimpleNamespace:
    """A session that has sent 1,000 datagrams, of which 700 came."""
    return SimpleNamespace(credited=(1000, 700))


def made(*, eager: bool = True) -> FirstPass:
    return FirstPass(path(), eager=eager)


def test_without_loss_it_is_what_is_needed() -> None:
    assert made().chunks(P, 1000) == 592
    assert made().chunks(Tolerance.of(0), 1000) == 1000


def test_it_is_everything_where_the_bound_is_not_known_or_not_the_end() -> None:
    assert made().chunks(None, 1000) == 1000
    assert made(eager=False).chunks(P, 1000) == 1000


def test_it_makes_up_for_steady_loss_and_its_spread() -> None:
    first_pass = made()
    for _ in range(30):
        first_pass.learn(0.05)
    # 31 lost, times 1.1, and 1.5 times a deviation of 5.7
    assert first_pass.chunks(P, 1000) == 592 + 43
    assert first_pass.chunks(P, 30) == 18 + 3
    for _ in range(40):
        first_pass.learn(0.0)
    assert first_pass.chunks(P, 1000) == 592


def test_a_burst_is_forgotten_and_never_exceeds_the_round() -> None:
    first_pass = made()
    first_pass.learn(1.0)
    assert first_pass.chunks(P, 1000) < 720
    for _ in range(50):
        first_pass.learn(1.0)
    assert first_pass.chunks(P, 1000) == 1000


@pytest.mark.parametrize(
    ("acknowledged", "drained", "loss"),
    [
        (100, 100, 0.0),
        (100, 110, 0.0),  # some were repeated
        (100, 80, 0.2),
        (100, 0, 0.5),  # no more than a burst
    ],
)
def test_a_pass_that_was_enough_teaches_what_credits_say(
    acknowledged: int, drained: int, loss: float
) -> None:
    channel, taught = path(), made()
    first_pass = FirstPass(channel, eager=True)
    channel.credited = (1000 + acknowledged, 700 + drained)
    first_pass.learn_from_credits()
    taught.learn(loss)
    assert first_pass.chunks(P, 1000) == taught.chunks(P, 1000)
    first_pass.learn_from_credits()  # another round, of which no credit has come
    assert first_pass.chunks(P, 1000) == taught.chunks(P, 1000)


def test_few_datagrams_are_left_for_the_next_round() -> None:
    channel, taught = path(), made()
    first_pass = FirstPass(channel, eager=True)
    channel.credited = (1050, 700)
    first_pass.learn_from_credits()
    assert first_pass.chunks(P, 1000) == 592
    channel.credited = (1100, 780)
    first_pass.learn_from_credits()
    taught.learn(0.2)
    assert first_pass.chunks(P, 1000) == taught.chunks(P, 1000)


def test_what_a_bitmap_has_said_credits_need_not_say_again() -> None:
    channel, taught = path(), made()
    first_pass = FirstPass(channel, eager=True)
    channel.credited = (1100, 730)
    first_pass.learn(0.7)
    taught.learn(0.7)
    first_pass.learn_from_credits()
    assert first_pass.chunks(P, 1000) == taught.chunks(P, 1000)


@pytest.mark.parametrize(
    ("streams", "chunks", "repeated"), [(1, 60, 0), (8, 200, 0), (1, 300, 0.2)]
)
def test_steady_loss_seldom_costs_a_pass(
    fastpath: ModuleType, streams: int, chunks: int, repeated: float
) -> None:
    model = Model(loss=0.1, duplicate=repeated, delay_s=1e-3)
    pair = Pair(fastpath, model=model, config=TransportConfig(order="rotate"), seed=5)
    data = np.ones(chunks * CHUNK_BYTES // 4, np.float32)
    passes = []
    for round_id in range(1, 61):
        fields = {"round_id": round_id}
        ends = [
            (
                pair.arm(np.zeros_like(data), stream=stream, tolerance=P, **fields),
                pair.send(data, stream=stream, expected_tolerance=P, **fields),
            )
            for stream in range(streams)
        ]
        pair.run(lambda ends=ends: all(s.is_over and r.report is not None for r, s in ends))
        passes += [sender.report.passes for _, sender in ends]
    settled = passes[len(passes) // 4 :]
    assert sum(settled) / len(settled) < (1.2 if not repeated else 1.6)


def test_rounds_after_a_burst_forget_it(fastpath: ModuleType) -> None:
    """Also where each of them is probed, because STOP takes longer than a sender waits."""
    pair = Pair(
        fastpath, model=Model(loss=0.7, delay_s=1e-3), config=TransportConfig(order="rotate")
    )
    data = np.ones(1000 * CHUNK_BYTES // 4, np.float32)
    fields = {"tolerance": P, "expected_tolerance": P}
    assert pair.exchange(data, round_id=1, **fields)[0].report.passes > 1
    assert pair.a.session._link.first_pass.chunks(P, 1000) > 650
    pair.model.loss = 0.0
    for round_id in range(2, 40):
        sender, receiver, _ = pair.exchange(data, round_id=round_id, **fields)
        assert receiver.report.passes == 1
    assert sender.epoch == 1
    assert sender.report.datagrams == P.needed(1000)
    pair.model.loss = 0.1
    for round_id in range(40, 80):
        pair.exchange(data, round_id=round_id, **fields)
    assert 592 / 0.95 < pair.a.session._link.first_pass.chunks(P, 1000) < 592 / 0.83
