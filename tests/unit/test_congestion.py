"""Congestion control without a network: what the window does with delays."""

from __future__ import annotations

import math
import random

import pytest

from dblp import AdaptiveWindow, ConfigError, FixedRate, TransportConfig, Unpaced
from dblp.congestion import Feedback, within_host
from dblp.congestion.adaptive import STEP_MINIMUM, UNQUEUED_DATAGRAMS
from dblp.congestion.delivery_rate import DeliveryRate
from tests.unit.congestion_path import BASE_S, Path


def test_the_window_doubles_on_an_empty_path_and_only_if_it_limits() -> None:
    path = Path(AdaptiveWindow())
    first = path.control.window
    path.rounds(3, BASE_S)
    assert path.control.window == 8 * first
    path.rounds(3, BASE_S, limited=False)
    assert path.control.window == 8 * first


def test_a_queue_shrinks_the_window_in_proportion_and_never_below_the_minimum() -> None:
    plan = AdaptiveWindow()
    path = Path(plan)
    path.rounds(6, BASE_S)
    before = path.control.window
    path.rounds(1, 2 * (BASE_S + plan.queue_delay_s))
    assert path.control.window == before // 2 + plan.step_datagrams
    path.rounds(60, 0.02)
    assert plan.minimum_datagrams <= path.control.window <= 2 * plan.step_datagrams + 8


def test_two_senders_with_one_queue_become_equal_and_pace() -> None:
    """The step is what both gain alike; the loss is in proportion."""
    paths = [Path(AdaptiveWindow()), Path(AdaptiveWindow())]
    paths[0].rounds(5, BASE_S)
    capacity_per_s = 1e9 / 8 / 1514
    for _ in range(400):
        queued = sum(path.control.window for path in paths)
        for path in paths:
            path.rounds(1, max(BASE_S, queued / capacity_per_s))
    small, large = sorted(path.control.window for path in paths)
    assert large <= 1.1 * small
    assert (small + large) * 1514 < 200_000
    paced = sum(path.control.pacing_bytes_per_s for path in paths) / 1472
    assert capacity_per_s < paced < 1.5 * capacity_per_s


def test_a_sender_with_little_to_send_keeps_a_small_window() -> None:
    """Ready chunks come in bursts that fill the window for a moment, and the path stays empty: the
    window follows what was delivered, or the next full round would flood the buffer."""
    path = Path(AdaptiveWindow())
    datagrams_per_s = 27_000  # a third of 1 Gb/s
    delay_s = 100e-6
    for _ in range(4000):
        path.rounds(1, delay_s, sent=round(datagrams_per_s * delay_s))
    assert 20 < path.control.window < 60
    assert path.control.pacing_bytes_per_s == 0.0


def burst_windows(path: Path, *, seconds: float, loss: float = 0.7) -> list[int]:
    """Windows under a burst on a path without a queue that takes 1.5 million datagrams a second.

    Each GSO batch of the window and its credit are lost with this probability.  When no credit
    comes, the sender stands still for a request interval, and then knows that all was lost.
    """
    rng = random.Random(70)
    windows = []
    until = path.now + seconds
    while path.now < until:
        window = path.control.window
        windows.append(window)
        batches = -(-window // 44)
        arrived = any(rng.random() > loss and rng.random() > loss for _ in range(batches))
        path.now += max(4 * BASE_S, window / 1.5e6)
        if arrived:
            path.sent += window
            path.credit(path.sent, 4 * BASE_S)
        else:
            path.lose_all()
    return windows


def test_a_burst_of_loss_does_not_shrink_the_window() -> None:
    """With most credits lost the delivery rate is low; a window that followed it would be lost
    whole nearly every time, and never grow again."""
    path = Path(AdaptiveWindow())
    path.rounds(20_000, BASE_S, sent=1)
    assert path.control.window < 100
    windows = burst_windows(path, seconds=1.0)
    assert sum(windows[-100:]) / 100 > 700
    assert max(windows[-100:]) < 2 * UNQUEUED_DATAGRAMS
    path.rounds(2_000, 4 * BASE_S, sent=20, limited=False)  # afterwards it is bounded again,
    assert path.control.window < 0.7 * UNQUEUED_DATAGRAMS
    path.rounds(20_000, BASE_S, sent=1)  # and follows the rate where it limits
    assert path.control.window < 200


def test_a_window_that_is_lost_to_a_full_queue_stays_bounded() -> None:
    """The queue empties while the sender waits for credit: that it was full is what counts."""
    windows = []
    for tail_lost in (False, True):
        path = Path(AdaptiveWindow())
        path.rounds(100, 0.001)
        path.now += 0.002
        path.control.on_feedback(
            Feedback(
                now=path.now, path_delay_s=0.0, smallest_delay_s=0.0, samples=0, sent=path.sent,
                acknowledged=path.sent, window_limited=True, lost=0, tail_lost=tail_lost,
            )
        )  # fmt: skip
        path.rounds(6, 0.0001)
        windows.append(path.control.window)
    assert windows[0] == windows[1]


def test_the_rate_of_a_trickle_never_holds_up_a_round() -> None:
    """Two datagrams every 50 ms, with a delay of 4 ms because a process waits for its turn: at that
    rate the first GSO batch of the next round would take 0.9 s."""
    path = Path(plan := AdaptiveWindow())
    path.rounds(200, BASE_S)
    for _ in range(6):
        path.now += 0.046
        path.rounds(1, 0.004, limited=False, sent=2)
    assert path.control.pacing_bytes_per_s >= plan.minimum_datagrams * 1472 / 0.004


def test_a_pause_says_nothing_about_the_rate() -> None:
    rate = DeliveryRate()
    for index in range(11):
        rate.update(100 * index, now=1.0 + 0.01 * index)
    assert rate.per_s == pytest.approx(10_000)
    rate.update(1001, now=60.0)
    assert rate.per_s == pytest.approx(10_000)
    rate.update(1500, now=60.1)
    assert rate.per_s == pytest.approx(10_000)


@pytest.mark.parametrize("delay_s", [BASE_S, BASE_S + 0.0001, BASE_S + 0.0003])
def test_loss_without_a_queue_is_no_signal(delay_s: float) -> None:
    assert step_after(delay_s, share=0.5) == AdaptiveWindow().step_datagrams


def step_after(delay_s: float, *, share: float, count: int = 20, datagram_bytes: int = 1472) -> int:
    """By how much the window grows above what the delay asks for, after `count` round trips that
    lose this share."""
    plan = AdaptiveWindow()
    path = Path(plan, datagram_bytes)
    path.rounds(2, BASE_S)
    for _ in range(count):
        path.rounds(1, delay_s, lost=round(share * path.control.window))
    before = path.control.window
    path.rounds(1, 2 * (BASE_S + plan.queue_delay_s))  # it is halved, and gains the step
    return path.control.window - before // 2


def test_a_queue_that_loses_makes_the_step_smaller() -> None:
    """Little by little, down to what keeps a sender with losses of its own in the race."""
    full, queued = AdaptiveWindow().step_datagrams, 0.001
    assert step_after(queued, share=0.05) == full
    assert step_after(queued, share=0.1, count=1) in (full * 3 // 4, full * 3 // 4 + 1)
    assert step_after(queued, share=0.1, count=30) in (STEP_MINIMUM, STEP_MINIMUM + 1)
    assert step_after(queued, share=0.5, count=30, datagram_bytes=4 * 1472) in (2, 3)


class Port:
    """A drop-tail port of 1 Gb/s with 200 KB that some senders with much to send share."""

    capacity_per_s = 1e9 / 8 / 1514
    buffer = 200_000 // 1514

    def __init__(self, senders: int) -> None:
        self.paths = [Path(AdaptiveWindow()) for _ in range(senders)]
        self.sent = self.lost = 0
        self.queues: list[float] = []
        self.rng = random.Random(senders)

    def rounds(self, count: int, *, own_loss: float = 0.0) -> None:
        """`count` round trips; what the buffer does not take is lost, of each in proportion, and of
        the first `own_loss` besides."""
        for _ in range(count):
            windows = [path.control.window for path in self.paths]
            queued = sum(windows) - self.capacity_per_s * BASE_S
            share = max(0.0, queued - self.buffer) / sum(windows)
            self.queues.append(min(queued, self.buffer))
            delay = BASE_S + max(0.0, self.queues[-1]) / self.capacity_per_s
            for path, window in zip(self.paths, windows, strict=True):
                lost = math.ceil(share * window)
                self.sent += window
                self.lost += lost
                if path is self.paths[0]:
                    lost += sum(self.rng.random() < own_loss for _ in range(window))
                path.rounds(1, delay, lost=lost)


@pytest.mark.parametrize("senders", [1, 3, 6, 10])
def test_steps_fit_the_buffer_that_senders_share(senders: int) -> None:
    """Ten full steps and the target delay are 233 datagrams, the buffer takes 132."""
    port = Port(senders)
    port.rounds(300)
    port.sent = port.lost = 0
    port.queues.clear()
    port.rounds(300)
    assert port.lost <= 0.04 * port.sent
    assert min(port.queues) > 0  # and the port never runs empty
    windows = [path.control.window for path in port.paths]
    assert max(windows) <= 1.2 * min(windows)


@pytest.mark.parametrize(("own_loss", "least"), [(0.005, 0.45), (0.02, 0.35), (0.1, 0.27)])
def test_a_sender_with_losses_of_its_own_keeps_a_share(own_loss: float, least: float) -> None:
    port = Port(2)
    port.rounds(300, own_loss=own_loss)
    shares = []
    for _ in range(300):
        port.rounds(1, own_loss=own_loss)
        windows = [path.control.window for path in port.paths]
        shares.append(windows[0] / sum(windows))
    assert least < sum(shares) / len(shares) < 0.51
    assert min(port.queues) > 0


def test_a_step_grows_back_when_others_have_gone() -> None:
    port = Port(10)
    port.rounds(300)
    del port.paths[1:]
    port.rounds(100)
    fresh = Port(1)
    fresh.rounds(100)
    assert port.paths[0].control.window >= 0.95 * fresh.paths[0].control.window


def test_the_constant_choices() -> None:
    assert Unpaced().new_control(1472).pacing_bytes_per_s == 0
    path = Path(FixedRate(8e6))
    assert path.control.pacing_bytes_per_s == 1e6 and path.control.window > 1 << 20
    path.rounds(3, 1.0)
    assert path.control.window > 1 << 20


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast"])
def test_a_rate_must_be_positive(rate: object) -> None:
    with pytest.raises(ConfigError, match="bits_per_s"):
        FixedRate(rate)  # type: ignore[arg-type]


def test_bad_plans_and_choices_are_named() -> None:
    with pytest.raises(ConfigError, match="queue_delay_s"):
        AdaptiveWindow(queue_delay_s=0)
    with pytest.raises(ConfigError, match="step_datagrams"):
        AdaptiveWindow(step_datagrams=0)
    with pytest.raises(ConfigError, match="congestion"):
        TransportConfig(congestion="fast")  # type: ignore[arg-type]


def test_within_a_host_there_is_no_queue_to_keep_short() -> None:
    assert within_host(AdaptiveWindow()) == Unpaced()
    wanted = AdaptiveWindow(within_host=True)
    assert within_host(wanted) is wanted
    assert within_host(FixedRate(1e9)) == FixedRate(1e9)


def test_who_is_ahead_yields_where_there_is_a_queue_and_only_there() -> None:
    """Windows are in proportion to the steps: the others have twice as much of the queue."""
    queued, idle = [], []
    for ahead in (False, True):
        path = Path(AdaptiveWindow())
        path.rounds(200, 0.001, ahead=ahead)
        queued.append(path.control.window)
        path = Path(AdaptiveWindow())
        path.rounds(200, BASE_S, ahead=ahead)
        idle.append(path.control.window)
    assert queued[1] == pytest.approx(queued[0] / 2, rel=0.1)
    assert idle[0] == idle[1]


def test_who_was_ahead_has_its_share_again_soon() -> None:
    path = Path(AdaptiveWindow())
    path.rounds(200, 0.001)
    share = path.control.window
    path.rounds(200, 0.001, ahead=True)
    path.rounds(20, 0.001)
    assert path.control.window > 0.95 * share
