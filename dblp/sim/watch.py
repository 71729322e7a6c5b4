"""Sessions that are watched from outside: everything that goes in and comes out, as hooks."""

from __future__ import annotations

import random
from typing import Any

from ..config import TransportConfig
from ..fastpath import Channel
from ..proto import Event, Path, Receiver, Sender, Session
from ..proto.finished import RoundKey
from ..wire import Bye, Frame, Stop
from .network import End, Host

__all__ = ["Observer", "Violation", "Watch", "WatchedSession"]


class Violation(AssertionError):  # noqa: N818 (a finding, not a failure of the simulator)
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        """Such as "R2"; see docs/ARCHITECTURE.md."""


class Observer:
    """Base of the checkers: hooks that do nothing.  A hook may raise `Violation`."""

    def armed(self, session: WatchedSession, receiver: Receiver) -> None:
        """`session` was told to receive a round."""

    def sending(self, session: WatchedSession, sender: Sender) -> None:
        """`session` was told to send a round."""

    def frame_in(self, session: WatchedSession, frame: Frame) -> None:
        """`frame` is about to be given to `session`."""

    def frame_out(self, session: WatchedSession, frame: Frame) -> None:
        """`session` has sent `frame`, by whichever way."""

    def stopping(self, session: WatchedSession, sender: Sender) -> None:
        """A STOP, real or implied, is about to reach the open `sender`."""

    def event(self, session: WatchedSession, event: Event) -> None:
        """The owner of `session` has taken `event`."""

    def local_over(self, rank: int, stream: int, round_id: int, result: bytes) -> None:
        """`rank`, which lives with the server, has the mean."""

    def datagrams_out(self, end: End, datagrams: list[bytes]) -> None:
        """`datagrams` leave `end`."""

    def turn_over(self, host: Host) -> None:
        """A turn of Python on `host` has ended."""

    def run_over(self, ends: list[End]) -> None:
        """The run has ended: every round that can end has ended, and nothing is on its way."""


_HOOKS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Watch:
    """Calls the hooks of all observers that have them."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self._calls = {
            name: [
                getattr(observer, name)
                for observer in observers
                if getattr(type(observer), name) is not getattr(Observer, name)
            ]
            for name in _HOOKS
        }

    def tell(self, hook: str, *arguments: object) -> None:
        """Calls `hook` of all observers."""
        for call in self._calls[hook]:
            call(*arguments)

    def datagrams_out(self, end: End, datagrams: list[bytes]) -> None:
        """As `Observer.datagrams_out`."""
        for call in self._calls["datagrams_out"]:
            call(end, datagrams)

    def turn_over(self, host: Host) -> None:
        """As `Observer.turn_over`."""
        for call in self._calls["turn_over"]:
            call(host)


class WatchedSession(Session):
    """A session that tells a `Watch` what happens; otherwise the real one."""

    def __init__(
        self,
        channel: Channel,
        config: TransportConfig,
        *,
        rng: random.Random,
        peer: str,
        watch: Watch,
        role: str,
        rank: int,
    ) -> None:
        super().__init__(channel, config, rng=rng, peer=peer)
        self.watch = watch
        self.role = role
        """"server", "worker", "a" or "b"."""
        self.rank = rank
        """Rank of the worker at one end; 0 point to point."""
        self.other: WatchedSession
        """The session at the other end."""
        self.receivers_armed: dict[RoundKey, Receiver] = {}
        """The newest receiver of every round."""
        self.all_receivers: list[Receiver] = []
        """Every receiver there ever was."""
        self.all_senders: list[Sender] = []
        """Every sender there ever was."""

    def __str__(self) -> str:
        return f"{self.role} of rank {self.rank}"

    def arm(self, **arguments: Any) -> Receiver:
        """As `Session.arm`."""
        receiver = super().arm(**arguments)
        self.receivers_armed[receiver.stream, receiver.round_id] = receiver
        self.all_receivers.append(receiver)
        self.watch.tell("armed", self, receiver)
        return receiver

    def send(self, **arguments: Any) -> Sender:
        """As `Session.send`."""
        sender = super().send(**arguments)
        self.all_senders.append(sender)
        self.watch.tell("sending", self, sender)
        return sender

    def imply_stop(self, stream: int, round_id: int, *, now: float) -> None:
        """As `Session.imply_stop`."""
        self._tell_stopping(self.sender(stream, round_id))
        super().imply_stop(stream, round_id, now=now)

    def on_frame(self, frame: Frame, *, now: float) -> None:
        """As `Session.on_frame`."""
        if self.error is None:
            self.watch.tell("frame_in", self, frame)
            if isinstance(frame, Stop):
                self._tell_stopping(self.sender(frame.stream, frame.round))
            elif isinstance(frame, Bye):
                for sender in self.all_senders:
                    if not sender.is_over:
                        self._tell_stopping(sender)
        super().on_frame(frame, now=now)

    def take_frames(self) -> list[tuple[Frame, Path]]:
        """As `Session.take_frames`."""
        frames = super().take_frames()
        for frame, _ in frames:
            self.watch.tell("frame_out", self, frame)
        return frames

    def take_events(self) -> list[Event]:
        """As `Session.take_events`."""
        events = super().take_events()
        for event in events:
            self.watch.tell("event", self, event)
        return events

    def _tell_stopping(self, sender: Sender | None) -> None:
        if sender is not None:
            self.watch.tell("stopping", self, sender)
