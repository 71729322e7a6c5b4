"""How long a first pass is."""

from __future__ import annotations

from dblp import Tolerance
from dblp.proto.first_pass import FirstPass

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
