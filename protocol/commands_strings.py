"""Strings under plain keys."""

from __future__ import annotations

from functools import partial

from .data_spec import ALL, NX_XX, READ, REMOVE, SCAN, SLOW_WRITE, WRITE, data, expiration
from .spec import Parameter, block, integer, key, many, optional, string, word

_string = partial(data, group="string")

KEY = key("key")
VALUE = string("value")
PAIRS = many(block("data", KEY, VALUE))
PAIR_KEYS = (1, -1, 2)
FLOAT = Parameter("increment", "double")

STRING_COMMANDS = (
    _string(
        "APPEND", "Adds bytes at the end of a string; a missing key is an empty one.",
        "The length of the result, an integer.",
        KEY, VALUE, flags=WRITE, complexity="O(N), N = length of the result",
        shows=("APPEND greeting world", "(integer) 10"),
    ),
    _string(
        "DECR", "Subtracts 1 from an integer; a missing key is 0.", "The result, an integer.",
        KEY, flags=WRITE, shows=("DECR stock", "(integer) 9"),
    ),
    _string(
        "DECRBY", "Subtracts from an integer; a missing key is 0.", "The result, an integer.",
        KEY, integer("decrement"), flags=WRITE, shows=("DECRBY stock 3", "(integer) 6"),
    ),
    _string(
        "GET", "The value of a string.", "The value, or null.",
        KEY, flags=READ, shows=("GET greeting", '"hello"'),
    ),
    _string(
        "GETDEL", "The value of a string, which is removed.", "The value, or null.",
        KEY, flags=REMOVE, shows=("GETDEL greeting", '"hello"'),
    ),
    _string(
        "GETEX", "The value of a string, and sets or clears when it ends.", "The value, or null.",
        KEY, optional(expiration(word("PERSIST"))), flags=REMOVE, shows=("GETEX greeting EX 60", '"hello"'),
    ),
    _string(
        "GETRANGE", "Bytes of a string from one position to another, both included; negative from its end.",
        "The bytes, a bulk string.",
        KEY, integer("start"), integer("end"), flags=SCAN, complexity="O(N), N = length of the value",
        shows=("GETRANGE greeting 0 1", '"he"'),
    ),
    _string(
        "GETSET", "Sets a string and answers what it was.", "The old value, or null.",
        KEY, VALUE, flags=WRITE, shows=("GETSET greeting hi", '"hello"'),
    ),
    _string(
        "INCR", "Adds 1 to an integer; a missing key is 0.", "The result, an integer.",
        KEY, flags=WRITE, shows=("INCR visits", "(integer) 1"),
    ),
    _string(
        "INCRBY", "Adds to an integer; a missing key is 0.", "The result, an integer.",
        KEY, integer("increment"), flags=WRITE, shows=("INCRBY visits 5", "(integer) 6"),
    ),
    _string(
        "INCRBYFLOAT", "Adds to a decimal number; a missing key is 0.", "The result, a bulk string.",
        KEY, FLOAT, flags=WRITE, shows=("INCRBYFLOAT load 0.5", '"0.5"'),
    ),
    _string(
        "MGET", "The values of several strings.", "An array: a value, or null, for each key.",
        many(KEY), flags=READ, keys=ALL, complexity="O(N), N = keys", shows=("MGET a b", '1) "1"'),
    ),
    _string(
        "MSET", "Sets several strings in one step.", "OK.",
        PAIRS, flags=SLOW_WRITE, keys=PAIR_KEYS, complexity="O(N), N = keys", shows=("MSET a 1 b 2", "OK"),
    ),
    _string(
        "MSETNX", "Sets several strings in one step, if none of the keys is there.", "1 or 0.",
        PAIRS, flags=SLOW_WRITE, keys=PAIR_KEYS, complexity="O(N), N = keys",
        shows=("MSETNX a 1 b 2", "(integer) 0"),
    ),
    _string(
        "PSETEX", "Sets a string that ends after some milliseconds.", "OK.",
        KEY, integer("milliseconds"), VALUE, flags=SLOW_WRITE, shows=("PSETEX greeting 1500 hello", "OK"),
    ),
    _string(
        "SET", "Sets a string, whatever the key held before.",
        "OK, or null when NX or XX forbids it; with GET the old value, or null.",
        KEY, VALUE, optional(NX_XX), optional(word("GET")), optional(expiration(word("KEEPTTL"))),
        flags=SLOW_WRITE, shows=("SET greeting hello EX 60", "OK"),
    ),
    _string(
        "SETEX", "Sets a string that ends after some seconds.", "OK.",
        KEY, integer("seconds"), VALUE, flags=SLOW_WRITE, shows=("SETEX greeting 60 hello", "OK"),
    ),
    _string(
        "SETNX", "Sets a string if the key is not there.", "1 or 0.",
        KEY, VALUE, flags=WRITE, shows=("SETNX greeting hello", "(integer) 1"),
    ),
    _string(
        "SETRANGE", "Writes bytes into a string from a position on, after zeros when it is shorter.",
        "The length of the result, an integer.",
        KEY, integer("offset"), VALUE, flags=SLOW_WRITE, complexity="O(N), N = length of the result",
        shows=("SETRANGE greeting 5 !", "(integer) 6"),
    ),
    _string(
        "STRLEN", "The length of a string.", "An integer, 0 for a missing key.",
        KEY, flags=READ, shows=("STRLEN greeting", "(integer) 5"),
    ),
)  # fmt: skip
