"""The readable pump: all channels of one thread, until there is something for Python to do."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from ._fastpath_py_channel import Channel

EVENT = 1
QUIET = 2
BUDGET = 4
WAKE = 8

RECEIVE_CALLS_PER_TURN = 16
"""Bounds a turn, so that credits and data of our own leave while a peer keeps the socket full."""


def pump(
    channels: Sequence[Channel], wake_fds: Sequence[int], *, budget_ns: int, linger_ns: int
) -> int:
    """Receives and sends on all channels until there is an EVENT, nothing happens for linger_ns,
    budget_ns is over, or a wake fd is readable.  Sends credits (every window/8 datagrams drained,
    when a socket runs empty after at least one DATA, and on request).  Returns flags (EVENT | QUIET
    | BUDGET | WAKE)."""
    if any(channel.fd < 0 for channel in channels):
        raise ValueError("a channel without a socket cannot be pumped: use ingest() and collect()")
    started_ns = last_news_ns = now_ns = time.monotonic_ns()
    while True:
        if any(channel.reached() for channel in channels):
            return EVENT
        if _turn(channels, now_ns):
            last_news_ns = now_ns
            if any(channel.reached() for channel in channels):
                return EVENT
        now_ns = time.monotonic_ns()
        if now_ns - started_ns >= budget_ns:
            return BUDGET
        if now_ns - last_news_ns >= linger_ns:
            return QUIET
        deadlines = [channel.next_deadline_ns(now_ns) for channel in channels]
        until_ns = min(
            started_ns + budget_ns,
            last_news_ns + linger_ns,
            *(deadline for deadline in deadlines if deadline >= 0),
        )
        if _wait(channels, wake_fds, max(0, until_ns - now_ns)):
            return WAKE
        now_ns = time.monotonic_ns()


def _turn(channels: Sequence[Channel], now_ns: int) -> bool:
    """Inputs before outputs, on every channel; whether anything happened."""
    happened = False
    wall_ahead_ns = time.time_ns() - now_ns
    for channel in channels:
        happened |= channel.receive_pending(RECEIVE_CALLS_PER_TURN, now_ns, wall_ahead_ns)
    for channel in channels:
        happened |= channel.send_pending(now_ns) > 0
    return happened


def _wait(channels: Sequence[Channel], wake_fds: Sequence[int], timeout_ns: int) -> bool:
    """Waits for a socket or a wake fd; whether a wake fd is readable."""
    poll = select.poll()
    for channel in channels:
        writable = select.POLLOUT if channel.wants_writable else 0
        poll.register(channel.fd, select.POLLIN | writable)
    for fd in wake_fds:
        poll.register(fd, select.POLLIN)
    # poll() counts in milliseconds; rounded down, so that no deadline is overslept.
    ready = {fd for fd, _ in poll.poll(timeout_ns // 1_000_000)}
    return any(fd in ready for fd in wake_fds)
