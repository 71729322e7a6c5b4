"""What a session does about the state of the path: congestion control and stalls."""

from __future__ import annotations

from ..config import TransportConfig
from ..congestion import Feedback
from ..fastpath import Channel
from ..wire import HEADER_BYTES
from .probing import ProbePolicy, RttEstimate

__all__ = ["StallWatch", "Steering"]


class Steering:
    """Round-trip samples go to timers and congestion control; its window, to the channel."""

    __slots__ = ("_channel", "_control", "_rtt", "due")

    def __init__(self, channel: Channel, config: TransportConfig, rtt: RttEstimate) -> None:
        self._channel = channel
        self._control = config.congestion.new_control(channel.chunk_bytes + HEADER_BYTES)
        self._rtt = rtt
        self.due = 0.0
        """When `on_progress` is wanted again while something is being sent, in seconds."""
        self._apply()

    def on_progress(self, *, now: float) -> None:
        """Reads the channel's samples."""
        channel = self._channel
        limited = channel.take_window_limited()
        smallest_ns, last_ns, samples = channel.take_rtt_ns()
        if samples:
            self._rtt.update(last_ns)
        tail_lost = channel.take_tail_lost()
        if samples or limited or tail_lost:
            path_ns, _ = channel.take_path_ns()
            self._control.on_feedback(
                Feedback(
                    now=now,
                    path_delay_s=path_ns * 1e-9,
                    smallest_delay_s=smallest_ns * 1e-9,
                    samples=samples,
                    sent=channel.sent_sequence,
                    acknowledged=channel.acknowledged,
                    window_limited=limited,
                    lost=channel.take_lost(),
                    tail_lost=tail_lost,
                    ahead=channel.told_ahead,
                )
            )
            self._apply()
        self.due = now + self._control.update_interval_s

    def _apply(self) -> None:
        self._channel.cwnd = self._control.window
        self._channel.pacing_rate = self._control.pacing_bytes_per_s


class StallWatch:
    """Notices that the channel is blocked and nothing moves: credit and data must be lost."""

    __slots__ = ("_channel", "_mark", "_policy", "due")

    def __init__(self, channel: Channel, policy: ProbePolicy) -> None:
        self.due: float | None = None
        """When `is_stalled` wants to be asked, in seconds; None while nothing is blocked."""
        self._channel = channel
        self._policy = policy
        self._mark = (0, 0)

    def look(self, *, sending: bool, now: float) -> None:
        """Arms the timer while something is blocked; any progress starts it anew."""
        channel = self._channel
        if not sending or not channel.blocked():
            self.due = None
            return
        mark = (channel.sent_sequence, channel.acknowledged)
        if self.due is None or mark != self._mark:
            self._mark = mark
            self.due = now + self._policy.stall_s()

    def is_stalled(self, *, now: float) -> bool:
        """Whether the time is over and still nothing moved; true once."""
        if self.due is None or now < self.due:
            return False
        self.look(sending=True, now=now)
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True
