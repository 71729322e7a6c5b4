"""What a session tells its congestion control."""

from __future__ import annotations

from types import SimpleNamespace

from dblp.config import TransportConfig
from dblp.congestion import Feedback
from dblp.proto.probing import RttEstimate
from dblp.proto.steering import Steering


class Recorder:
    """A choice and its state: remembers what it is told."""

    window = 10
    pacing_bytes_per_s = 0.0
    update_interval_s = 0.5

    def __init__(self) -> None:
        self.told: list[Feedback] = []

    def new_control(self, datagram_bytes: int) -> Recorder:
        assert datagram_bytes == 1024
        return self

    def on_feedback(self, feedback: Feedback) -> None:
        self.told.append(feedback)


def test_everything_that_the_channel_knows_is_told_once() -> None:
    recorder = Recorder()
    samples = [(40, 50, 3), (0, 0, 0)]
    channel = SimpleNamespace(
        chunk_bytes=1000,
        sent_sequence=9,
        acknowledged=7,
        take_rtt_ns=lambda: samples.pop(0),
        take_path_ns=lambda: (45, 3),
        take_window_limited=lambda: True,
        take_tail_lost=lambda: False,
        take_lost=lambda: 2,
        told_ahead=True,
    )
    config = TransportConfig(congestion=recorder)
    steering = Steering(channel, config, RttEstimate())  # type: ignore[arg-type]
    assert (channel.cwnd, channel.pacing_rate) == (10, 0.0)
    steering.on_progress(now=1.0)
    assert recorder.told == [
        Feedback(
            now=1.0, path_delay_s=45 * 1e-9, smallest_delay_s=40 * 1e-9, samples=3, sent=9,
            acknowledged=7, window_limited=True, lost=2, tail_lost=False, ahead=True,
        )
    ]  # fmt: skip
    assert steering.due == 1.5
