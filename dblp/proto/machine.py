"""A state machine whose transitions are data."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Machine"]

S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741 (the mathematical name)


class Machine(Generic[S, I]):
    """Holds a state and takes steps through a table.

    A (state, input) pair is in one of three classes: in `transitions` it acts; in `harmless` it
    changes nothing (what a duplicate or late frame may cause); any other pair is our own bug.
    """

    __slots__ = ("harmless", "state", "transitions")

    def __init__(
        self, start: S, transitions: Mapping[tuple[S, I], S], harmless: Set[tuple[S, I]]
    ) -> None:
        self.state = start
        self.transitions = transitions
        self.harmless = harmless

    def step(self, input_: I) -> bool:
        """True if `input_` acts, False if it is harmless; AssertionError if impossible."""
        following = self.transitions.get((self.state, input_))
        if following is not None:
            self.state = following
            return True
        if (self.state, input_) in self.harmless:
            return False
        raise AssertionError(f"{input_} cannot happen in {self.state}")
