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


def test_without_loss_it_is_what_is_needed() -> None:
    assert FirstPass(eager=True).chunks(P, 1000) == 592
    assert FirstPass(eager=True).chunks(Tolerance.of(0), 1000) == 1000


def test_it_is_everything_where_the_bound_is_not_known_or_not_the_end() -> None:
    assert FirstPass(eager=True).chunks(None, 1000) == 1000
    assert FirstPass(eager=False).chunks(P, 1000) == 1000


def test_it_makes_up_for_steady_loss() -> None:
    first_pass = FirstPass(eager=True)
    for _ in range(30):
        first_pass.learn(0.05)
    assert 592 / 0.95 < first_pass.chunks(P, 1000) < 592 / 0.94
    for _ in range(30):
        first_pass.learn(0.0)
    assert first_pass.chunks(P, 1000) == 592


def test_a_burst_is_forgotten_and_never_exceeds_the_round() -> None:
    first_pass = FirstPass(eager=True)
    first_pass.learn(1.0)
    assert first_pass.chunks(P, 1000) < 700
    for _ in range(50):
        first_pass.learn(1.0)
    assert first_pass.chunks(P, 1000) == 1000


@pytest.mark.parametrize(
    ("acknowledged", "drained", "loss"),
    [
        (0, 0, 0.0),  # no credit yet
        (100, 100, 0.0),
        (100, 110, 0.0),  # some were repeated
        (100, 80, 0.2),
        (100, 0, 0.5),  # no more than a burst
    ],
)
def test_a_pass_that_was_enough_teaches_what_credits_say(
    acknowledged: int, drained: int, loss: float
) -> None:
    path = SimpleNamespace(acknowledged=1000 + acknowledged, peer_drained=700 + drained)
    first_pass, taught = FirstPass(eager=True), FirstPass(eager=True)
    first_pass.learn_since(1000, 700, path)
    taught.learn(loss)
    assert first_pass.chunks(P, 1000) == taught.chunks(P, 1000)


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
    assert 592 / 0.95 < pair.a.session._link.first_pass.chunks(P, 1000) < 592 / 0.85
