"""What one choice changes: pairs of settings that differ in nothing else."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .measures import Column
from .settings import Setting
from .statistics import Spread, spread_of

__all__ = ["Effect", "effects_of"]

FACTORS = {
    "order": "order",
    "rule": "missing rule",
    "residual": "error feedback",
    "downlink": "downlink",
    "norm": "norm of Eq. 1",
    "high": "P_high",
    "eta": "η",
    "interval": "interval",
}
"""Fields of a setting that are told apart, and what they are called."""

WORDS = {True: "on", False: "off", None: "the usual"}


@dataclass(frozen=True)
class Effect:
    """One value of one field instead of another."""

    factor: str
    value: str
    instead_of: str
    pairs: int
    """Of settings that differ in nothing else."""
    scores: Spread
    """Score with the value less the one without: per seed the mean of the pairs."""


def effects_of(columns: Sequence[Column]) -> list[Effect]:
    """Every value that at least one pair shows, against the usual value or the first there is."""
    found = []
    for field, name in FACTORS.items():
        groups: dict[tuple[object, ...], dict[object, Column]] = {}
        for column in columns:
            groups.setdefault(_rest(column.setting, field), {}).setdefault(
                getattr(column.setting, field), column
            )
        varied = [group for group in groups.values() if len(group) > 1]
        values = list(dict.fromkeys(itertools.chain.from_iterable(varied)))
        usual = getattr(Setting(name="usual", label=""), field)
        if usual not in values and values:
            usual = values[0]
        for value in values:
            pairs = [group for group in varied if usual in group and value in group]
            spread = _mean_difference([(group[value], group[usual]) for group in pairs])
            if value != usual and spread.count:
                found.append(Effect(name, _word(value), _word(usual), len(pairs), spread))
    return found


def _rest(setting: Setting, field: str) -> tuple[object, ...]:
    """All that must be equal for a pair."""
    kept = dataclasses.replace(setting, name="", label="")
    return tuple(
        getattr(kept, other.name) for other in dataclasses.fields(kept) if other.name != field
    )


def _word(value: object) -> str:
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


def _mean_difference(pairs: Sequence[tuple[Column, Column]]) -> Spread:
    by_seed: dict[int, list[float]] = {}
    for with_value, without in pairs:
        scores, usual = with_value.by_seed("score"), without.by_seed("score")
        for seed in scores.keys() & usual.keys():
            by_seed.setdefault(seed, []).append(scores[seed] - usual[seed])
    return spread_of(spread_of(by_seed[seed]).mean for seed in sorted(by_seed))
