"""Tolerances are exact: in text, in comparison and in the bound they put on a round."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.errors import ConfigError
from dblp.tolerance import EXACT, Tolerance

TABLE_I = ("0.8%", "2.4%", "40.8%", "42.4%")

fractions = st.fractions(min_value=0, max_value=1, max_denominator=10**20).filter(lambda p: p < 1)


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        ("40.8%", Fraction(51, 125)),
        ("40.8 %", Fraction(51, 125)),
        ("0.408", Fraction(51, 125)),
        (".408", Fraction(51, 125)),
        ("51/125", Fraction(51, 125)),
        (" 51 / 125 ", Fraction(51, 125)),
        ("0", Fraction(0)),
        ("0%", Fraction(0)),
        (0, Fraction(0)),
        (Fraction(2, 3), Fraction(2, 3)),
        (EXACT, Fraction(0)),
        ("99.999999999999999999%", 1 - Fraction(1, 10**20)),
    ],
)
def test_of_reads_every_documented_form(value: object, fraction: Fraction) -> None:
    assert Tolerance.of(value).fraction == fraction


@pytest.mark.parametrize("value", [0.408, 0.0, float("nan"), -1.5])
def test_floats_are_refused_with_the_way_out(value: float) -> None:
    with pytest.raises(ConfigError, match=r'write it as "40\.8%"'):
        Tolerance.of(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "%", ".", "1.", "abc", "-1%", "+1%", "1e-3", "nan", "inf", "1/0", "1/2/3", "1/-2"),
        *("0x1", "1_0%", "٤٠%", "0." + "1" * 19, "1" * 40, "1/" + "9" * 22, "40.8%%", "1/2%"),
        *("1", "100%", "3/2", 1, -1, Fraction(1), Fraction(-1, 2), Fraction(1, 10**21)),
        *(True, False, None, b"0", [0], 1j),
    ],
)
def test_everything_else_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        Tolerance.of(value)


def test_the_constructor_takes_fractions_only() -> None:
    with pytest.raises(ConfigError):
        Tolerance(0.5)  # type: ignore[arg-type]


def test_it_is_frozen_hashable_and_ordered() -> None:
    low, high = Tolerance.of("0.8%"), Tolerance.of("40.8%")
    assert low < high
    assert {low: 1}[Tolerance.of("1/125")] == 1
    with pytest.raises(FrozenInstanceError):
        low.fraction = Fraction(1, 2)  # type: ignore[misc]


def test_is_exact_only_at_zero() -> None:
    assert EXACT.is_exact
    assert not Tolerance.of(Fraction(1, 10**20)).is_exact


def test_0_408_of_625_is_255_where_floats_say_254() -> None:
    assert math.floor(0.408 * 625) == 254
    assert Tolerance.of("40.8%").missing_max(625) == 255


@pytest.mark.parametrize("text", TABLE_I)
def test_bound_holds_for_every_count_of_table_i(text: str) -> None:
    tolerance = Tolerance.of(text)
    p = tolerance.fraction
    for chunks in range(2001):
        missing = tolerance.missing_max(chunks)
        assert missing <= p * chunks < missing + 1
        assert tolerance.needed(chunks) == math.ceil((1 - p) * chunks)


@given(fractions, st.integers(0, 2**32))
def test_missing_max_is_the_largest_count_within_p(p: Fraction, chunks: int) -> None:
    missing = Tolerance(p).missing_max(chunks)
    assert missing <= p * chunks < missing + 1
    assert Tolerance(p).needed(chunks) + missing == chunks


def test_a_negative_chunk_count_is_refused() -> None:
    with pytest.raises(ConfigError):
        EXACT.missing_max(-1)


@pytest.mark.parametrize("text", [*TABLE_I, "0%", "50%", "0.05%", "99.999%", "1/3", "2/7"])
def test_str_is_what_people_write(text: str) -> None:
    assert str(Tolerance.of(text)) == text


@given(fractions)
def test_text_forms_are_lossless(p: Fraction) -> None:
    tolerance = Tolerance(p)
    assert Tolerance.of(str(tolerance)) == tolerance
    assert Tolerance.of(tolerance.wire()) == tolerance


def test_wire_form() -> None:
    assert Tolerance.of("40.8%").wire() == "51/125"
    assert EXACT.wire() == "0/1"


@given(st.text(max_size=80))
def test_no_text_raises_anything_but_config_error(text: str) -> None:
    try:
        tolerance = Tolerance.of(text)
    except ConfigError:
        return
    assert 0 <= tolerance.fraction < 1
