"""Keeps rounds moving while a trainer thread runs pure Python.

The loop thread needs the GIL for a few microseconds per control frame and finished round.  A thread
that runs Python code without a pause gives it up only every `sys.getswitchinterval()`, 5 ms by
default, so each of those moments would cost 5 ms.  While rounds are open the interval is shorter
(measured: `python -m bench run hog`).
"""

from __future__ import annotations

import sys
import threading

_lock = threading.Lock()
_holders = 0
_normal_s = 0.0
_short_s = 0.0


def hold_short_interval(interval_s: float) -> None:
    """A round opens: threads hand over the GIL after at most `interval_s` seconds from now on; 0
    changes nothing."""
    global _holders, _normal_s, _short_s
    if not interval_s:
        return
    with _lock:
        if _holders == 0:
            _normal_s = sys.getswitchinterval()
        _holders += 1
        if interval_s < sys.getswitchinterval():
            sys.setswitchinterval(interval_s)
            _short_s = sys.getswitchinterval()


def release_short_interval(interval_s: float) -> None:
    """A round is over; after the last one the interval is what it was, unless somebody else has
    changed it meanwhile."""
    global _holders
    if not interval_s:
        return
    with _lock:
        _holders -= 1
        if _holders == 0 and sys.getswitchinterval() == _short_s:
            sys.setswitchinterval(_normal_s)
