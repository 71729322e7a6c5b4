"""Memory of what is over and of what waits: why late and early frames are harmless."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..errors import RemoteProtocolError
from ..wire import Open, Probe, Stop, round_is_newer

__all__ = ["FinishedRounds", "RoundKey", "WaitingOffer", "WaitingOffers"]

RoundKey = tuple[int, int]
"""(stream, round)."""

FINISHED_MAX = 64
"""Finished rounds whose STOP is remembered, at least; with many streams, 4 per stream."""

OFFERS_MAX = 64
"""Announced rounds that may wait for `Session.arm`; a peer that sends more is broken."""


@dataclass(slots=True)
class RememberedStop:
    """The STOP of a finished round, short enough for a datagram."""

    stop: Stop
    reliable: bool
    """Over TCP too: a copy as a datagram did not get through, or none does."""


class FinishedRounds:
    """The newest finished receive rounds of a session: a late probe gets the same STOP again."""

    __slots__ = ("_newest", "_stops")

    def __init__(self) -> None:
        self._stops: OrderedDict[RoundKey, RememberedStop] = OrderedDict()
        self._newest: dict[int, int] = {}

    def remember(self, key: RoundKey, stop: Stop, *, reliable: bool) -> None:
        """`key` is over; `reliable`: its payload came over TCP."""
        stream, round_id = key
        newest = self._newest.get(stream)
        if newest is None or round_is_newer(round_id, newest):
            self._newest[stream] = round_id
        self._stops[key] = RememberedStop(stop, reliable)
        while len(self._stops) > max(FINISHED_MAX, 4 * len(self._newest)):
            self._stops.popitem(last=False)

    def recall(self, key: RoundKey) -> RememberedStop | None:
        """The STOP of `key`, if it is remembered."""
        return self._stops.get(key)

    def is_past(self, key: RoundKey) -> bool:
        """Whether a finished round of the stream is at least as new (survives the wrap)."""
        newest = self._newest.get(key[0])
        return newest is not None and not round_is_newer(key[1], newest)


@dataclass(slots=True)
class WaitingOffer:
    """An announcement that nothing armed fits, and the newest probe that came with it."""

    open: Open
    wants_ready: bool
    """Ready is to be sent: an Open asked for it (a probe does not)."""
    probe: Probe | None


class WaitingOffers:
    """Announcements that came before `Session.arm`; bounded."""

    __slots__ = ("_offers",)

    def __init__(self) -> None:
        self._offers: dict[RoundKey, WaitingOffer] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def add(self, key: RoundKey, open_: Open, wants_ready: bool, probe: Probe | None) -> bool:
        """Keeps the announcement; True if it is the first of its round.

        Raises RemoteProtocolError when more than `OFFERS_MAX` rounds would wait.
        """
        offer = self._offers.get(key)
        if offer is None:
            if len(self._offers) >= OFFERS_MAX:
                raise RemoteProtocolError(
                    f"the peer announced more than {OFFERS_MAX} rounds that nobody here waits for: "
                    "run the same rounds on both sides"
                )
            self._offers[key] = WaitingOffer(open_, wants_ready, probe)
            return True
        offer.wants_ready |= wants_ready
        if probe is not None and (offer.probe is None or probe.epoch > offer.probe.epoch):
            offer.probe = probe
        return False

    def take(self, key: RoundKey) -> WaitingOffer | None:
        """Removes and returns what waits for `key`."""
        return self._offers.pop(key, None)

    def drop_past(self, finished: FinishedRounds) -> None:
        """Forgets announcements of rounds that are over."""
        if self._offers:
            for key in [key for key in self._offers if finished.is_past(key)]:
                del self._offers[key]

    def clear(self) -> None:
        """Forgets all."""
        self._offers.clear()
