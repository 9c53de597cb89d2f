"""YAML 1.1 scalars as Kubernetes reads them. Pure.

Kubernetes turns YAML into JSON by ``sigs.k8s.io/yaml``, which rests on go-yaml v2: ``resolve``
(``go.yaml.in/yaml/v2/resolve.go``) says what a plain scalar is, ``convertToJSONableObject``
(``sigs.k8s.io/yaml/yaml.go``) how a key becomes text. That is not quite what YAML 1.1 says and not what PyYAML does:
no sexagesimal numbers, ``y`` and ``n`` are booleans, ``0o17`` is a number, dates stay text.
"""

from __future__ import annotations

import math
import re
import struct

Scalar = str | int | float | bool | None

_PREFIX = "tag:yaml.org,2002:"
STR, BOOL, INT, FLOAT, NULL, TIMESTAMP, BINARY, MERGE = (
    _PREFIX + name for name in ("str", "bool", "int", "float", "null", "timestamp", "binary", "merge")
)
_RESOLVABLE = (STR, BOOL, INT, FLOAT, NULL, TIMESTAMP)

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
HINTS = frozenset("+-0123456789.yYnNtTfFoO~")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_FRACTION = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?", re.ASCII)
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))",
    re.ASCII,
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
# The longest text of 64 bits is 66 characters; Python's own conversion refuses thousands of digits with an error.
_MAX_DIGITS = 80


class ScalarError(Exception):
    """A scalar that the API server would not be sent: the text says why."""


def plain(text: str) -> Scalar:
    """Value of a plain scalar without a tag."""
    if text and text[0] not in HINTS:
        return text
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        # ``ParseFloat`` takes underscores between digits, where the other forms lose all of theirs before.
        return _float(text.replace("_", ""), text) if _FRACTION.fullmatch(text) else text
    if first in "+-0123456789":
        return _number(text)
    return text


def tagged(tag: str, text: str) -> Scalar:
    """Value of a scalar with an explicit tag; ScalarError when the two do not fit."""
    if tag not in _RESOLVABLE or tag in (STR, TIMESTAMP):
        return text
    value = plain(text)
    if tag == FLOAT and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    kind = NULL if value is None else {bool: BOOL, int: INT, float: FLOAT, str: STR}[type(value)]
    if kind != tag:
        raise ScalarError(f"{text[:40]!r} is not of the type {tag.removeprefix(_PREFIX)} that its tag says")
    return value


def key_text(value: Scalar) -> str:
    """A mapping's key as JSON has it; ScalarError for null and what else ``convertToJSONableObject`` refuses."""
    if isinstance(value, str):
        return value
    if value is None:
        raise ScalarError("a key that is null")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value >= 2**63:
            raise ScalarError("a number of more than 63 bits as a key")
        return str(value)
    return _float_key(value)


def check_number(value: Scalar) -> Scalar:
    """The value itself; ScalarError for what JSON cannot hold (``.nan``, ``.inf``)."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ScalarError("a number that is not finite")
    return value


def _number(text: str) -> Scalar:
    """``ParseInt``, ``ParseUint`` and ``ParseFloat`` of Go with base 0, after the underscores are gone."""
    digits = text.replace("_", "")
    if len(digits) <= _MAX_DIGITS and (match := _INTEGER.fullmatch(digits)):
        name = str(match.lastgroup)
        value = int(match[name], _BASES[name])
        value = -value if match["sign"] == "-" else value
        if -(2**63) <= value < 2**63 or (not match["sign"] and value < 2**64):
            return value
    if _FLOAT.fullmatch(digits):
        return _float(digits, text)
    return text


def _float(digits: str, text: str) -> float | str:
    """A float, or ``text`` where it is out of range (Go reports an error and takes it as text)."""
    value = float(digits)
    return text if math.isinf(value) else value


def _float_key(value: float) -> str:
    """``strconv.FormatFloat(value, 'g', -1, 32)``: the shortest text that gives the same 32-bit float."""
    if math.isnan(value):
        return ".nan"
    try:
        narrow = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        narrow = math.copysign(math.inf, value)
    if math.isinf(narrow):
        return ".inf" if narrow > 0 else "-.inf"
    for precision in range(1, 10):
        text = f"{narrow:.{precision - 1}e}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == narrow:
            break
    mantissa, _, exponent_text = text.partition("e")
    exponent = int(exponent_text)
    # For the shortest form %e is used when the exponent is below -4 or not below 6 (``formatDigits``, strconv/ftoa.go).
    if exponent < -4 or exponent >= 6:
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return f"{float(text):.{max(0, precision - 1 - exponent)}f}"
