"""Numbers as Redis reads and writes them. The sums were taken from redis-server 7.0 on x86."""

import math

import pytest
from pionkv.storage.keyspace.errors import NotANumber, WouldOverflow
from pionkv.storage.keyspace.numbers import parse_double, parse_integer
from pionkv.storage.keyspace.strings import add_decimals, decimal


@pytest.mark.parametrize(
    ("value", "step", "total"),
    [
        (b"5000.1", b"0", b"5000.10000000000000009"),
        (b"0.1", b"0.2", b"0.3"),
        (b"1e17", b"0.1", b"100000000000000000.1015625"),
        (b"3.0e3", b"200", b"3200"),
        (b"10.50", b"0.1", b"10.6"),
        (b"-1", b"1", b"0"),
        (b"123456789012345678", b"0.5", b"123456789012345678.5"),
        (b"0.00000000000000001", b"0", b"0.00000000000000001"),
        (b"1e-18", b"0", b"0"),
        (b"99999999999999999999", b"1", b"100000000000000000000"),
        (b"1e30", b"1", b"1000000000000000000024696061952"),
        (b"0.3", b"-0.1", b"0.2"),
    ],
)
def test_sums_are_those_of_x87(value, step, total):
    assert add_decimals(decimal(value), decimal(step)) == total


def test_what_is_no_number_and_what_is_not_finite_are_told_apart():
    with pytest.raises(NotANumber):
        decimal(b"one")
    with pytest.raises(WouldOverflow):
        decimal(b"-inf")
    with pytest.raises(WouldOverflow):
        add_decimals(decimal(b"1e4932"), decimal(b"1e4932"))


@pytest.mark.parametrize(
    "text", [b"", b" 1", b"1 ", b"+1", b"01", b"-0", b"1.0", b"9223372036854775808", b"x"]
)
def test_integers_have_one_form(text):
    assert parse_integer(text) is None


def test_the_ends_of_the_integers():
    assert parse_integer(b"9223372036854775807") == 2**63 - 1
    assert parse_integer(b"-9223372036854775808") == -(2**63)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1.5", 1.5),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b"-1e3", -1e3),
        (b"+inf", math.inf),
        (b"-Infinity", -math.inf),
    ],
)
def test_doubles(text, value):
    assert parse_double(text) == value


@pytest.mark.parametrize("text", [b"", b"nan", b"1e400", b"1e-400", b"0x10", b" 1", b"1e", b"--1", b"."])
def test_no_doubles(text):
    assert parse_double(text) is None


def test_zero_has_any_exponent():
    assert parse_double(b"0e-400") == 0.0 and parse_double(b"0.000") == 0.0
