"""A path for congestion control without a network."""

from __future__ import annotations

from dblp.congestion import Congestion, CongestionControl, Feedback

BASE_S = 20e-6


class Path:
    """One sender whose window is always full."""

    def __init__(self, plan: Congestion, datagram_bytes: int = 1472) -> None:
        self.control: CongestionControl = plan.new_control(datagram_bytes)
        self.now = 1.0
        self.sent = 0

    def rounds(
        self,
        count: int,
        delay_s: float,
        *,
        limited: bool = True,
        sent: int | None = None,
        lost: int = 0,
        hosts_s: float = 0.0,
        ahead: bool = False,
    ) -> None:
        """`count` round trips of this delay, with `sent` datagrams each (None: the window), of
        which `lost` do not arrive; the hosts hold datagrams and credits for `hosts_s` besides.
        `ahead`: the receiver says that others are behind."""
        for _ in range(count):
            smallest_s = min(delay_s, BASE_S) if self.sent == 0 else delay_s
            self.sent += self.control.window if sent is None else sent
            self.now += delay_s + hosts_s
            self.credit(
                self.sent, delay_s, limited=limited, lost=lost, smallest_s=smallest_s, ahead=ahead
            )

    def credit(
        self,
        acknowledged: int,
        delay_s: float,
        *,
        limited: bool = True,
        lost: int = 0,
        smallest_s: float | None = None,
        ahead: bool = False,
    ) -> None:
        """News of all up to `acknowledged`, now."""
        self.control.on_feedback(
            Feedback(
                now=self.now,
                path_delay_s=delay_s,
                smallest_delay_s=delay_s if smallest_s is None else smallest_s,
                samples=1,
                sent=self.sent,
                acknowledged=acknowledged,
                window_limited=limited,
                lost=lost,
                tail_lost=False,
                ahead=ahead,
            )
        )

    def lose_all(self) -> None:
        """A whole window is lost: the sender stands still until it has asked."""
        self.sent += self.control.window
        self.now += 0.002
        self.control.on_feedback(
            Feedback(
                now=self.now,
                path_delay_s=0.0,
                smallest_delay_s=0.0,
                samples=0,
                sent=self.sent,
                acknowledged=self.sent,
                window_limited=True,
                lost=self.control.window,
                tail_lost=True,
            )
        )
