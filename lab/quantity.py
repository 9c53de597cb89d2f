"""Kubernetes quantities as exact numbers.

Follows ``ParseQuantity``, ``Value`` and ``MilliValue`` of
``k8s.io/apimachinery/pkg/api/resource/quantity.go``: a number with a binary suffix (Ki … Ei), a decimal
suffix (n u m k M G T P E) or a decimal exponent (e3), kept down to nano.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from lab.model import ParseError

QuantityLike = str | int | float

_NANO = 10**9
_NANO_PLACES = 9
# ParseQuantity caps a quantity with a binary suffix at the largest int64, without an error.
_MAX_BINARY = 2**63 - 1
_MAX_BINARY_DIGITS = 19
# ParseQuantity takes numbers of any length and decimal exponents of 32 bits. What is longer before the point is no
# amount of anything, and Python's time for it grows with the square; up to here its value can be printed too.
_MAX_DIGITS = 4000
_MAX_EXPONENT = 2**31 - 1
_EXPONENT_DIGITS = 10

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(value: QuantityLike) -> Fraction:
    """The exact amount, in the resource's own unit (cores, bytes).

    ``value`` is text as in a manifest, or the int or float that YAML made of it. A non-zero amount finer
    than nano is rounded away from zero, as the API server does. ParseError for anything else, booleans and
    NaN included, and for an amount of more than 4000 digits before the point.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ParseError("not a Kubernetes quantity", str(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ParseError("not a finite quantity", str(value))
    if isinstance(value, int):
        return Fraction(value)
    text = value if isinstance(value, str) else repr(value)
    match = _FORM.fullmatch(text)
    if match is None:
        raise ParseError("not a Kubernetes quantity", text)
    whole, _, part = match["number"].partition(".")
    if match["suffix"] in _BINARY:
        nanos = _binary(whole.lstrip("0"), part, _BINARY[match["suffix"]])
    else:
        exponent = _DECIMAL[match["suffix"]] if match["suffix"] else _exponent(match["exponent"] or "0", text)
        nanos = _decimal((whole + part).lstrip("0"), exponent - len(part) + _NANO_PLACES, text)
    return Fraction(-nanos if match["sign"] == "-" else nanos, _NANO)


def _exponent(written: str, text: str) -> int:
    digits = written.lstrip("+-").lstrip("0") or "0"
    exponent = int(digits) if len(digits) <= _EXPONENT_DIGITS else _MAX_EXPONENT + 1
    if exponent > _MAX_EXPONENT:
        raise ParseError("quantity with an exponent out of range", text)
    return -exponent if written.startswith("-") else exponent


def _decimal(digits: str, shift: int, text: str) -> int:
    """``digits`` times ten to the ``shift``, rounded up; ``digits`` has no leading zero and may be empty."""
    places = len(digits) + shift
    if digits and places > _MAX_DIGITS + _NANO_PLACES:
        raise ParseError(f"quantity of more than {_MAX_DIGITS} digits before the point", text)
    if not digits:
        return 0
    if shift >= 0:
        return int(f"{digits}{'0' * shift}")
    kept = max(0, places)
    return int(digits[:kept] or "0") + bool(digits[kept:].strip("0"))


def _binary(whole: str, part: str, power: int) -> int:
    """Nanos of ``whole.part`` times two to the ``power``, rounded up and capped; ``whole`` has no leading zero."""
    if len(whole) > _MAX_BINARY_DIGITS:
        return _MAX_BINARY * _NANO
    factor = _NANO << power
    # The places after the point are multiplied as by hand, some at a time from the last on: of what falls out below
    # it only counts whether it is nothing.
    carry, exact = 0, True
    for stop in range(len(part), 0, -_MAX_DIGITS):
        piece = part[max(0, stop - _MAX_DIGITS) : stop]
        carry, rest = divmod(int(piece) * factor + carry, 10 ** len(piece))
        exact = exact and not rest
    return min(int(whole or "0") * factor + carry + (not exact), _MAX_BINARY * _NANO)


def cpu_milli(value: QuantityLike) -> int:
    """Millicores, a fraction rounded away from zero (``MilliValue``). ParseError for bad text."""
    return _away_from_zero(parse_quantity(value) * 1000)


def memory_bytes(value: QuantityLike) -> int:
    """Bytes, a fraction rounded away from zero (``Value``). ParseError for bad text."""
    return _away_from_zero(parse_quantity(value))


def format_quantity(amount: Fraction) -> str:
    """Text that :func:`parse_quantity` reads back as ``amount`` (finer than nano: away from zero)."""
    for suffix, scale in (("", 1), ("m", 10**3), ("u", 10**6)):
        if (amount * scale).denominator == 1:
            return f"{(amount * scale).numerator}{suffix}"
    return f"{_away_from_zero(amount * _NANO)}n"


def _away_from_zero(amount: Fraction) -> int:
    """The nearest integer whose magnitude is not smaller."""
    return math.ceil(amount) if amount >= 0 else math.floor(amount)
