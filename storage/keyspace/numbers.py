"""Numbers as text, in the forms that Redis reads and writes."""

from __future__ import annotations

import math
import re
from fractions import Fraction

LONGEST_INTEGER = 20
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?0*[0-9]{1,4})?")
_NOT_ZERO = re.compile(rb"[+-]?[0.]*[1-9]")
_INFINITY = re.compile(rb"([+-]?)inf(?:inity)?", re.IGNORECASE)

EXTENDED_BITS = 64
"""Precision of the x87 format, which INCRBYFLOAT computes in."""
EXTENDED_LIMIT = Fraction(1 << 16384)
"""Where that format ends."""
FLOAT_DIGITS = 17
"""Digits after the point that INCRBYFLOAT writes."""
LONGEST_NUMBER = 5 * 1024


def parse_integer(text: bytes) -> int | None:
    """A 64-bit integer in its one canonical form, or None."""
    if len(text) > LONGEST_INTEGER or not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if INT64_MIN <= value <= INT64_MAX else None


def parse_double(text: bytes) -> float | None:
    """A double, infinities included; None for NaN, what is no number, and what a double cannot hold."""
    if _DECIMAL.fullmatch(text):
        value = float(text)
        return None if math.isinf(value) or (not value and _NOT_ZERO.match(text)) else value
    infinity = _INFINITY.fullmatch(text)
    if infinity is None:
        return None
    return -math.inf if infinity[1] == b"-" else math.inf


def parse_extended(text: bytes) -> Fraction | None:
    """A decimal number rounded to the x87 format; None for infinities and for what is no number."""
    if len(text) > LONGEST_NUMBER or not _DECIMAL.fullmatch(text):
        return None
    value = round_extended(Fraction(text.decode()))
    return value if abs(value) < EXTENDED_LIMIT else None


def round_extended(value: Fraction) -> Fraction:
    """The nearest number of the x87 format, ties to even; its least exponents aside."""
    if not value:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length() - EXTENDED_BITS
    unit = Fraction(2) ** exponent
    if abs(value) / unit >= 1 << EXTENDED_BITS:
        unit *= 2
    return round(value / unit) * unit


def format_extended(value: Fraction) -> bytes:
    """With 17 digits after the point, zeros at the end left out."""
    scaled = round(value * 10**FLOAT_DIGITS)
    whole, digits = divmod(abs(scaled), 10**FLOAT_DIGITS)
    fraction = f"{digits:0{FLOAT_DIGITS}d}".rstrip("0")
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole}.{fraction}".rstrip(".").encode()
