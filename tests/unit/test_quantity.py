from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import quantity
from lab.model import ParseError
from lab.quantity import cpu_milli, format_quantity, memory_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("0", 0),
        ("500m", 500),
        ("0.5", 500),
        (".5", 500),
        ("1.", 1000),
        ("1", 1000),
        (1, 1000),
        (0.1, 100),
        (1.5, 1500),
        ("1500000u", 1500),
        ("100n", 1),
        ("1u", 1),
        ("1001u", 2),
        ("0.0001", 1),
        ("+2", 2000),
        ("2e0", 2000),
        ("2E-1", 200),
        ("0100m", 100),
        ("0m", 0),
    ],
)
def test_cpu_is_rounded_up_to_milli(text, milli):
    assert cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256Mi", 268435456),
        ("931Mi", 976224256),
        ("1973236Ki", 2020593664),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1k", 1000),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e+6", 12 * 10**6),
        ("1.5Gi", 3 * 2**29),
        ("0.5Ki", 512),
        ("1500m", 2),
        ("100m", 1),
        (1048576, 1048576),
        (1e22, 10**22),
        ("18446744073709551616", 2**64),
    ],
)
def test_memory_in_bytes(text, size):
    assert memory_bytes(text) == size


def test_very_long_numbers_are_numbers():
    assert parse_quantity(10**5000) == 10**5000
    assert parse_quantity("0" * 5000 + "7") == 7


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1e65", 10**65),
        ("1e3999", 10**3999),
        ("9" * 4000 + "." + "9" * 9, 10**4000 - Fraction(1, 10**9)),
        ("0." + "0" * 5000 + "7E-3", Fraction(1, 10**9)),
        ("1e-65", Fraction(1, 10**9)),
        ("-1e-2147483647", Fraction(-1, 10**9)),
        ("0e99999", 0),
        ("2e" + "0" * 5000 + "1", 20),
        ("2e-" + "0" * 5000 + "1", Fraction(1, 5)),
    ],
    ids=["e65", "e3999", "4000-places", "long-small", "e-65", "smallest", "zero", "long-exponent", "long-minus"],
)
def test_what_is_long_is_read_exactly_as_parse_quantity_reads_it(text, amount):
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("suffix", ["", "Ki", "Ei", "n", "E", "e-9"])
@given(digits=st.text("0123456789", min_size=1, max_size=40), places=st.text("0123456789", max_size=80))
def test_places_are_rounded_up_to_nano_and_else_exact(suffix, digits, places):
    scale = {"": 1, "Ki": 2**10, "Ei": 2**60, "n": Fraction(1, 10**9), "E": 10**18, "e-9": Fraction(1, 10**9)}[suffix]
    whole = Fraction(f"{digits}.{places or 0}") * scale
    if suffix.endswith("i"):
        whole = min(whole, Fraction(2**63 - 1))

    assert parse_quantity(f"{digits}.{places}{suffix}") == Fraction(math.ceil(whole * 10**9), 10**9)


def test_places_with_a_binary_suffix_are_multiplied_in_pieces(monkeypatch):
    monkeypatch.setattr(quantity, "_MAX_DIGITS", 7)
    for places in ("", "5", "123456789012345678901234567890", "0000000", "9" * 64):
        for suffix, scale in (("Ki", 2**10), ("Ei", 2**60)):
            exact = min(Fraction(f"3.{places or 0}") * scale, Fraction(2**63 - 1))
            assert parse_quantity(f"3.{places}{suffix}") == Fraction(math.ceil(exact * 10**9), 10**9)


class _Int(int):
    """An int() that refuses texts which would take long."""

    def __new__(cls, value):
        assert not isinstance(value, str) or len(value) <= 4300, f"{len(value)} digits at once"
        return int(value)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("9" * 1_000_000 + "Ki", 2**63 - 1),
        ("1." + "9" * 1_000_000, 2),
        ("0." + "0" * 1_000_000 + "1Ei", Fraction(1, 10**9)),
        ("1" + "9" * 1_000_000 + "e-1000000", 2),
        ("0" * 1_000_000 + "7m", Fraction(7, 1000)),
        ("9" * 1_000_000, None),
        ("9" * 1_000_000 + ".5", None),
        ("1e2000000000", None),
    ],
    ids=["capped", "places", "binary-places", "exponent", "zeros", "too-long", "too-long-places", "too-high"],
)
def test_no_length_costs_more_than_its_own_reading(text, amount, monkeypatch):
    monkeypatch.setattr(quantity, "int", _Int, raising=False)
    if amount is not None:
        assert parse_quantity(text) == amount
        return
    with pytest.raises(ParseError, match="more than 4000 digits before the point"):
        parse_quantity(text)


def test_binary_suffix_is_capped_at_int64_and_decimal_is_not():
    assert memory_bytes("8Ei") == 2**63 - 1
    assert memory_bytes("9223372036854775808") == 2**63


def test_finer_than_nano_is_rounded_away_from_zero():
    assert parse_quantity("0.9n") == Fraction(1, 10**9)
    assert parse_quantity("-0.9n") == Fraction(-1, 10**9)
    assert parse_quantity("0n") == 0


def test_negative_rounds_away_from_zero():
    assert cpu_milli("-1001u") == -2
    assert memory_bytes("-1500m") == -2


BAD_TEXTS = [
    *["", " ", "1 ", " 1", "1 Mi", "Mi", "1K", "1ki", "1mi", "1MI", "1Mib", "1MB", "abc", "500m\n", "1_000"],
    *["1e", "1e1.5", "1e3Ki", "1Kie3", "1e99999999999", "1e4000", "1e-99999999999", "0x10", "NaN", "inf", "\u0661"],
    *["--1", "1-", "1,5", "1.2.3", ".", "+", "-", "-m"],
]
BAD_VALUES = [True, False, None, [], {}, float("nan"), float("inf")]


@pytest.mark.parametrize("text", [*BAD_TEXTS, *BAD_VALUES])
def test_bad_text_is_refused_and_quoted(text):
    with pytest.raises(ParseError) as caught:
        parse_quantity(text)
    assert repr(str(text)) in str(caught.value)


@given(st.integers(-(10**15), 10**15), st.integers(0, 9))
def test_decimal_text_is_exact(digits, places):
    text = format(Decimal(digits).scaleb(-places), "f")
    assert parse_quantity(text) == Fraction(digits, 10**places)


@given(st.integers(-(10**24), 10**24))
def test_format_round_trips_down_to_nano(nanos):
    amount = Fraction(nanos, 10**9)
    assert parse_quantity(format_quantity(amount)) == amount


@given(st.integers(0, 2**40), st.sampled_from(["", "Ki", "Mi"]))
def test_suffix_only_scales(number, suffix):
    factor = {"": 1, "Ki": 2**10, "Mi": 2**20}[suffix]
    assert memory_bytes(f"{number}{suffix}") == min(number * factor, 2**63 - 1)


@given(st.text(alphabet="0123456789.+-eEKMGTPimunk ", max_size=8))
def test_any_text_gives_a_number_or_a_parse_error(text):
    try:
        amount = parse_quantity(text)
    except ParseError:
        return
    assert text[0] in "+-.0123456789"
    assert parse_quantity(format_quantity(amount)) == amount
