"""Windows on a path without a queue, where the hosts are the limit: beyond what the rate fills."""

from __future__ import annotations

import pytest

from dblp import AdaptiveWindow
from dblp.congestion.adaptive import UNQUEUED_DATAGRAMS
from tests.unit.congestion_path import BASE_S, Path


@pytest.mark.parametrize("has_queued", [False, True])
def test_hosts_that_answer_late_do_not_keep_the_window_small(has_queued: bool) -> None:
    """The processors are busy elsewhere, the path is empty: the delivery rate is low because the
    window is, and a window bounded by it was stuck at 100 to 200 datagrams."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    if has_queued:
        path.rounds(100, 0.003)
        assert path.control.window < 80
    path.rounds(100 if has_queued else 10, 2 * BASE_S, hosts_s=700e-6)
    assert path.control.window > 1000
    path.rounds(500, 2 * BASE_S, hosts_s=700e-6)
    assert path.control.window < 2 * UNQUEUED_DATAGRAMS  # but not without end


def test_a_slow_path_whose_hosts_answer_late_is_not_flooded() -> None:
    """A window that waits for its turn on a slow link shows as delay, however early it is sent."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    datagram_s = 1514 * 8 / 1e9
    for _ in range(400):
        assert path.control.window < 100
        path.rounds(1, BASE_S + path.control.window / 2 * datagram_s, hosts_s=700e-6)


def test_the_first_credit_of_a_round_does_not_cut_the_window() -> None:
    """It ends a round trip that had nothing in flight, with a small part of the window."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    for _ in range(20):
        path.rounds(10, 2 * BASE_S, hosts_s=0.005)
        path.now += 0.05
        path.sent += path.control.window
        path.credit(path.sent - path.control.window + 44, 2 * BASE_S)
        path.now += 0.005
        path.credit(path.sent, 2 * BASE_S)
    assert path.control.window > 1000


@pytest.mark.parametrize("room", [136, 400])
def test_a_buffer_that_is_too_small_to_show_a_queue_is_not_flooded(room: int) -> None:
    """What is in flight beyond it is lost, and news of it comes a round trip later.  Some 210
    datagrams are what the rate fills here, as it counts what left the path."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    lost, windows = 0, []
    for _ in range(4000):
        window = path.control.window
        path.rounds(1, 2 * BASE_S, lost=lost, hosts_s=700e-6)
        lost = max(0, window - room)
        windows.append(window)
    later = windows[2700:]  # after two seconds: a delivery rate counts for up to 0.2 s
    assert max(later) < max(220, 1.25 * room)
    assert min(later) > 0.8 * min(212, room)


def test_a_window_survives_the_end_of_a_burst() -> None:
    """One whole window was lost, and a tenth of a second later the next ones arrive as before."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    path.rounds(20, 2 * BASE_S, hosts_s=0.005)
    window = path.control.window
    path.lose_all()
    path.rounds(40, 2 * BASE_S, hosts_s=0.005)
    assert path.control.window == window


def test_a_full_window_once_in_a_while_is_no_reason_to_grow() -> None:
    """In an interval without hurry many windows arrive, whatever the one was that was full."""
    path = Path(AdaptiveWindow())
    path.rounds(2000, BASE_S, sent=1)
    before = path.control.window
    for _ in range(20):
        path.rounds(1, BASE_S, sent=1350, limited=True, hosts_s=0.05)
        path.rounds(1, BASE_S, sent=1350, limited=False, hosts_s=0.05)
    assert path.control.window <= before


def test_a_queue_long_ago_is_forgotten() -> None:
    """Then the window doubles again on an idle path, as in a new session."""
    path = Path(AdaptiveWindow())
    path.rounds(1, BASE_S)
    path.rounds(50, 0.003)
    path.now += 30.0
    path.rounds(10, 2 * BASE_S, sent=1)
    path.rounds(12, 2 * BASE_S, hosts_s=0.0025)
    assert path.control.window > 1000


@pytest.mark.parametrize("datagram_bytes", [576, 1472, 8972, 65507])
@pytest.mark.parametrize(
    "plan",
    [AdaptiveWindow(), AdaptiveWindow(minimum_datagrams=5000), AdaptiveWindow(step_datagrams=1)],
)
def test_an_idle_path_allows_a_window_of_so_many_bytes(
    plan: AdaptiveWindow, datagram_bytes: int
) -> None:
    path = Path(plan, datagram_bytes)
    path.rounds(1, BASE_S)
    path.rounds(2000, 2 * BASE_S, hosts_s=0.005)
    most = max(UNQUEUED_DATAGRAMS, plan.minimum_datagrams) * 1472
    assert 0.9 * most - datagram_bytes < path.control.window * datagram_bytes < 1.1 * most
