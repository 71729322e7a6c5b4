"""The open rounds of a session and the memory of those that are over."""

from __future__ import annotations

from collections import OrderedDict

from ..errors import DBLPError
from .finished import FinishedRounds, RoundKey, WaitingOffers
from .receiver import Receiver
from .sender import Sender

__all__ = ["OpenRounds"]

AWAITED_MAX = 64
"""Stopped senders that wait to hear which chunks were missing, though nobody may tell them."""


class OpenRounds:
    """Receivers and senders by (stream, round), and where they go when they are over.

    *Commands*: `retire_receiver`, `retire_sender`, `fail`.  The tables are read freely.
    """

    __slots__ = ("awaiting_missing", "finished", "offers", "receivers", "senders")

    def __init__(self) -> None:
        self.receivers: dict[RoundKey, Receiver] = {}
        """IDLE or RECEIVING."""
        self.senders: dict[RoundKey, Sender] = {}
        """IDLE, SENDING or PROBED."""
        self.awaiting_missing: OrderedDict[RoundKey, Sender] = OrderedDict()
        """STOPPED senders that do not know yet which chunks were missing."""
        self.finished = FinishedRounds()
        self.offers = WaitingOffers()

    def retire_receiver(self, receiver: Receiver) -> None:
        """A stopped receiver leaves the table; its STOP is remembered."""
        key = (receiver.stream, receiver.round_id)
        del self.receivers[key]
        assert receiver.stop is not None
        self.finished.remember(key, receiver.stop, reliable=receiver.reliable)
        self.offers.drop_past(self.finished)

    def retire_sender(self, sender: Sender) -> None:
        """A stopped sender leaves the table."""
        key = (sender.stream, sender.round_id)
        del self.senders[key]
        if sender.final_missing is None:
            self.awaiting_missing[key] = sender
            if len(self.awaiting_missing) > AWAITED_MAX:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Those that are told for sure stay."""
        for key, sender in self.awaiting_missing.items():
            if not sender.plan.is_told:
                del self.awaiting_missing[key]
                return

    def imply_all_stops(self, *, now: float) -> None:
        """Every sender counts as stopped (hazard 4; the peer said Bye)."""
        for sender in tuple(self.senders.values()):
            sender.imply_stop(now=now)
            self.retire_sender(sender)

    def fail(self, error: DBLPError) -> None:
        """Every open round is FAILED; nothing is left."""
        for receiver in self.receivers.values():
            receiver.fail(error)
        for sender in self.senders.values():
            sender.fail(error)
        self.receivers.clear()
        self.senders.clear()
        self.awaiting_missing.clear()
        self.offers.clear()
