"""How fast a sender may go: one small interface, three answers.

Loss is no signal to slow down: bounded loss is tolerated, and a burst says nothing about the rate
a path can carry.  What counts is the delay that the path adds (Swift, SIGCOMM 2020; FAST TCP,
INFOCOM 2004), measured without the time that either host holds a datagram, and kept across rounds,
because a round is too short to find a rate from nothing.
"""

from .adaptive import AdaptiveWindow, within_host
from .constant import FixedRate, Unpaced
from .interface import Congestion, CongestionControl, Feedback

__all__ = [
    "AdaptiveWindow",
    "Congestion",
    "CongestionControl",
    "Feedback",
    "FixedRate",
    "Unpaced",
    "within_host",
]
