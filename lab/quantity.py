"""Kubernetes quantities as exact numbers.

Follows ``ParseQuantity``, ``Value`` and ``MilliValue`` of
``k8s.io/apimachinery/pkg/api/resource/quantity.go``: a number with a binary suffix (Ki … Ei), a decimal
suffix (n u m k M G T P E) or a decimal exponent (e3), kept down to nano.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

from lab.model import ParseError

QuantityLike = str | int | float

_NANO = 10**9
# ParseQuantity caps a quantity with a binary suffix at the largest int64, without an error.
_MAX_BINARY = Fraction(2**63 - 1)
# An exponent beyond this is no amount of anything, and 10**exponent would fill the memory.
_MAX_EXPONENT = 64

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


def parse_quantity(value: QuantityLike) -> Fraction:
    """The exact amount, in the resource's own unit (cores, bytes).

    ``value`` is text as in a manifest, or the int or float that YAML made of it. A non-zero amount finer
    than nano is rounded away from zero, as the API server does. ParseError for anything else, booleans and
    NaN included.
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
    amount = Fraction(Decimal(match["number"].rstrip(".")))
    if match["exponent"] is not None:
        exponent = int(match["exponent"]) if len(match["exponent"]) <= 4 else _MAX_EXPONENT + 1
        if abs(exponent) > _MAX_EXPONENT:
            raise ParseError("quantity with an exponent out of range", text)
        amount *= Fraction(10) ** exponent
    elif match["suffix"] is not None:
        amount *= _SUFFIXES[match["suffix"]]
        if match["suffix"].endswith("i"):
            amount = min(amount, _MAX_BINARY)
    amount = Fraction(math.ceil(amount * _NANO), _NANO)
    return -amount if match["sign"] == "-" else amount


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
