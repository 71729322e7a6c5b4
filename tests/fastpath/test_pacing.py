"""Pacing: a rate in short bursts; all without a socket."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.channels import DATAGRAM_BYTES, MS, sender
from tests.fastpath.implementations import both


@both
@pytest.mark.parametrize(
    ("rate", "burst"),
    [(10e6, 2500 // DATAGRAM_BYTES), (1e9, 65536 // DATAGRAM_BYTES), (1.0, 2)],
    ids=["250 us", "at most 64 KiB", "at least two"],
)
def test_a_paced_burst_is_what_the_rate_sends_in_250_us(
    fastpath: ModuleType, rate: float, burst: int
) -> None:
    channel, slot, _ = sender(fastpath, 3 * burst, limit=10**6)
    channel.pacing_rate = rate
    channel.queue(slot, np.arange(3 * burst, dtype=np.uint32))
    assert len(channel.collect(10**6, 10_000 * MS)) == burst


@both
def test_a_late_turn_is_made_up_for_by_at_most_a_millisecond(fastpath: ModuleType) -> None:
    burst = 2500 // DATAGRAM_BYTES
    burst_ns = int(burst * DATAGRAM_BYTES * 1e9 / 10e6)
    channel, slot, _ = sender(fastpath, 1000, limit=10**6)
    channel.pacing_rate = 10e6
    channel.queue(slot, np.arange(1000, dtype=np.uint32))
    start = 10_000 * MS
    bursts = 0
    while channel.collect(10**6, start):  # a pause of any length earns one millisecond
        bursts += 1
    assert bursts == MS // burst_ns + 1
    due = channel.next_deadline_ns(start)
    assert channel.collect(10**6, due - 1) == []
    assert len(channel.collect(10, due)) == 10
    assert channel.next_deadline_ns(due) == due + int(10 * DATAGRAM_BYTES * 1e9 / 10e6)
    channel.pacing_rate = 0.0
    assert len(channel.collect(10**6, due)) == 1000 - bursts * burst - 10


@both
def test_pacing_keeps_the_rate(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, 1000, limit=10**6)
    rate = 1e6
    channel.pacing_rate = rate
    for _ in range(10):
        channel.queue(slot, np.arange(1000, dtype=np.uint32))
    now, start = 7 * MS, 7 * MS
    while channel.pending(slot):
        now = max(now, channel.next_deadline_ns(now))
        channel.collect(10**6, now)
    sent = channel.counters()["bytes_sent"]
    assert (sent - 65536) / rate - 0.001 <= (now - start) / 1e9 <= sent / rate
