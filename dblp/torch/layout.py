"""Which parameter lies where in a flat bucket, and ranges of its elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..errors import ConfigError

__all__ = ["BucketLayout", "Slot", "check_patterns", "subtract"]

Ranges = tuple[tuple[int, int], ...]
"""Element ranges [start, stop), ascending, not touching each other."""

NAMES_SHOWN = 8
"""Parameter names that an error lists at most."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's elements [start, stop) in the bucket."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """The parameters of one bucket, in memory order."""

    slots: tuple[Slot, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters; tells one layout from another."""
        return tuple(slot.name for slot in self.slots)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return max((slot.stop for slot in self.slots), default=0)

    def matching(self, patterns: Sequence[str]) -> Ranges:
        """The elements of the parameters that a pattern names, neighbours merged."""
        merged: list[tuple[int, int]] = []
        for slot in self.slots:
            if slot.start == slot.stop or not _named(slot.name, patterns):
                continue
            if merged and merged[-1][1] == slot.start:
                merged[-1] = (merged[-1][0], slot.stop)
            else:
                merged.append((slot.start, slot.stop))
        return tuple(merged)


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(patterns: Sequence[str], names: Iterable[str]) -> None:
    """ConfigError for a pattern that no parameter has: most likely a slip."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            shown = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
            raise ConfigError(
                f"exact has the pattern {pattern!r}, which no parameter matches: the names are "
                f"{shown or '(none)'}"
            )


def subtract(ranges: Ranges, holes: Ranges) -> Ranges:
    """What of `ranges` lies in none of `holes`."""
    if not holes:
        return ranges
    kept: list[tuple[int, int]] = []
    first = 0
    for start, stop in ranges:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        place = first
        while place < len(holes) and holes[place][0] < stop:
            if start < holes[place][0]:
                kept.append((start, holes[place][0]))
            start = max(start, holes[place][1])
            place += 1
        if start < stop:
            kept.append((start, stop))
    return tuple(kept)
