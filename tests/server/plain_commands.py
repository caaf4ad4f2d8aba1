"""Random commands on plain keys, for tests that run the same ones on two servers.

There are few keys, fields and members, so that commands meet each other's values, also of the wrong type;
and options come in all combinations, the refused ones included. Scores are multiples of a power of two,
which every way of writing doubles writes alike.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pionkv.protocol.commands_collections import HASH_COMMANDS, ZSET_COMMANDS
from pionkv.protocol.commands_keys import KEY_COMMANDS, TRANSACTION_COMMANDS
from pionkv.protocol.commands_strings import STRING_COMMANDS
from pionkv.protocol.spec import CommandSpec

Command = tuple[bytes, ...]

KEYS = st.sampled_from([b"a", b"b", b"c", b"k\xff\r\n"])
FIELDS = st.sampled_from([b"f", b"g", b"h", b"", b"long" * 20])
MEMBERS = st.sampled_from([b"m", b"n", b"o", b"", b"o\0", b"long" * 20])
INTEGERS = st.one_of(
    st.integers(-20, 20),
    st.sampled_from([2**31, 2**53, 2**63 - 1, -(2**63), 2**63]),
).map(lambda number: b"%d" % number)
BAD_NUMBERS = st.sampled_from([b"", b"1.5", b"+1", b"01", b" 1", b"1 ", b"x", b"-0", b"0x10"])
NUMBERS = st.one_of(*[INTEGERS] * 8, BAD_NUMBERS)
FLOATS = st.one_of(
    *[st.integers(-64, 64).map(lambda number: b"%r" % (number / 8))] * 6,
    st.sampled_from(
        [b"inf", b"-inf", b"+inf", b"nan", b"1e3", b".5", b"5.", b"-0", b"x", b"", b"1e400", b" 1"]
    ),
)
VALUES = st.one_of(
    INTEGERS,
    FLOATS,
    st.sampled_from([b"", b"text", b"v" * 44, b"v" * 45, b"\0\r\n\xff", b"w" * 5000]),
    st.binary(max_size=12),
)
SMALL = st.integers(-4, 8).map(lambda number: b"%d" % number)
PATTERNS = st.sampled_from([b"*", b"?", b"[a-b]", b"[^a]", b"k*", b"\\a", b"[", b"", b"[c-a]", b"a*b", b"**"])
_BOUNDS = FLOATS.filter(lambda bound: bound not in (b"", b" 1", b"1e400"))
SCORE_BOUNDS = st.one_of(
    _BOUNDS, _BOUNDS.map(lambda bound: b"(" + bound), st.sampled_from([b"-inf", b"+inf", b"-", b"+"])
)
"""Redis takes an empty bound as 0, and one beyond a double's range as infinite: here these are refused."""
LEX_BOUNDS = st.one_of(
    st.sampled_from([b"-", b"+", b"m", b"", b"("]),
    st.builds(lambda sign, member: sign + member, st.sampled_from([b"[", b"("]), MEMBERS),
)
WHEN = st.one_of(
    *[st.sampled_from([b"5000000", b"6000000", b"100000000"])] * 4,
    st.sampled_from([b"-1", b"0", b"9223372036854775807", b"-9223372036854775808"]),
    BAD_NUMBERS,
)
"""Nothing that ends within the time of a test."""
AT_SECONDS = st.sampled_from([b"4000000000", b"5000000000", b"1", b"-5", b"9223372036854775807"])
AT_MILLISECONDS = st.sampled_from([b"4000000000000", b"5000000000000", b"1000", b"0"])


def _words(*words: bytes) -> SearchStrategy[list[bytes]]:
    """Some of these, in any order, in either case."""
    one = st.sampled_from([*words, *(word.lower() for word in words)])
    return st.one_of(st.just([]), st.lists(one, max_size=3))


def _many(one: SearchStrategy[bytes], most: int = 4) -> SearchStrategy[list[bytes]]:
    return st.lists(one, min_size=1, max_size=most)


def _pairs(*one: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    pairs = st.lists(st.tuples(*one), min_size=1, max_size=3).map(
        lambda rows: [x for row in rows for x in row]
    )
    return st.one_of(*[pairs] * 6, pairs.map(lambda items: items[:-1]))


def _command(
    name: str, *parts: SearchStrategy[bytes] | SearchStrategy[list[bytes]]
) -> SearchStrategy[Command]:
    """A command from its name, its arguments and lists of arguments."""

    def flat(found: tuple[bytes | list[bytes], ...]) -> Command:
        words = [name.encode()]
        for part in found:
            words += part if isinstance(part, list) else [part]
        return tuple(words)

    return st.tuples(*parts).map(flat)


def _expiration() -> SearchStrategy[list[bytes]]:
    relative = st.tuples(st.sampled_from([b"EX", b"px"]), WHEN)
    absolute = st.one_of(
        st.tuples(st.just(b"EXAT"), AT_SECONDS), st.tuples(st.just(b"PXAT"), AT_MILLISECONDS)
    )
    one = st.one_of(relative.map(list), absolute.map(list))
    return st.one_of(
        st.just([]), one, one, st.builds(lambda two, more: two + more, one, one), st.just([b"EX"])
    )


_LIMIT = st.one_of(
    st.just([]), st.just([b"LIMIT", b"0"]), st.tuples(st.just(b"limit"), SMALL, SMALL).map(list)
)
_SCAN = st.one_of(
    st.just([]),
    PATTERNS.map(lambda pattern: [b"MATCH", pattern]),
    st.sampled_from([[b"COUNT"], [b"x", b"y"]]),
)
_ALL_AT_ONCE = st.just([b"COUNT", b"100000"])

STRINGS = [
    _command("APPEND", KEYS, VALUES),
    _command("DECR", KEYS),
    _command("DECRBY", KEYS, NUMBERS),
    _command("GET", KEYS),
    _command("GETDEL", KEYS),
    _command("GETEX", KEYS, _expiration(), _words(b"PERSIST")),
    _command("GETRANGE", KEYS, NUMBERS, NUMBERS),
    _command("GETSET", KEYS, VALUES),
    _command("INCR", KEYS),
    _command("INCRBY", KEYS, NUMBERS),
    _command("INCRBYFLOAT", KEYS, FLOATS),
    _command("MGET", _many(KEYS)),
    _command("MSET", _pairs(KEYS, VALUES)),
    _command("MSETNX", _pairs(KEYS, VALUES)),
    _command("PSETEX", KEYS, WHEN, VALUES),
    _command("SET", KEYS, VALUES, _words(b"NX", b"XX", b"GET", b"KEEPTTL"), _expiration()),
    _command("SET", KEYS, VALUES, _expiration(), _words(b"NX", b"GET", b"KEEPTTL", b"XX", b"WHAT")),
    _command("SETEX", KEYS, WHEN, VALUES),
    _command("SETNX", KEYS, VALUES),
    _command("SETRANGE", KEYS, st.one_of(SMALL, st.just(b"600000000")), VALUES),
    _command("STRLEN", KEYS),
]
HASHES = [
    _command("HDEL", KEYS, _many(FIELDS)),
    _command("HEXISTS", KEYS, FIELDS),
    _command("HGET", KEYS, FIELDS),
    _command("HGETALL", KEYS),
    _command("HINCRBY", KEYS, FIELDS, NUMBERS),
    _command("HINCRBYFLOAT", KEYS, FIELDS, FLOATS),
    _command("HKEYS", KEYS),
    _command("HLEN", KEYS),
    _command("HMGET", KEYS, _many(FIELDS)),
    _command("HMSET", KEYS, _pairs(FIELDS, VALUES)),
    _command("HSCAN", KEYS, st.just(b"0"), _SCAN, _ALL_AT_ONCE),
    *[_command("HSET", KEYS, _pairs(FIELDS, VALUES))] * 2,
    _command("HSETNX", KEYS, FIELDS, VALUES),
    _command("HSTRLEN", KEYS, FIELDS),
    _command("HVALS", KEYS),
]
ZSETS = [
    *[_command("ZADD", KEYS, _words(b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"), _pairs(FLOATS, MEMBERS))]
    * 2,
    _command("ZADD", KEYS, _pairs(FLOATS, MEMBERS)),
    _command("ZCARD", KEYS),
    _command("ZCOUNT", KEYS, SCORE_BOUNDS, SCORE_BOUNDS),
    _command("ZINCRBY", KEYS, FLOATS, MEMBERS),
    _command("ZMSCORE", KEYS, _many(MEMBERS)),
    _command("ZPOPMAX", KEYS, st.one_of(st.just([]), _many(NUMBERS, 2))),
    _command("ZPOPMIN", KEYS, st.one_of(st.just([]), _many(SMALL, 1))),
    _command("ZRANGE", KEYS, SMALL, SMALL, _words(b"REV", b"WITHSCORES", b"BYSCORE"), _LIMIT),
    _command(
        "ZRANGE", KEYS, SCORE_BOUNDS, SCORE_BOUNDS, st.just(b"BYSCORE"), _words(b"REV", b"WITHSCORES"), _LIMIT
    ),
    _command("ZRANGE", KEYS, LEX_BOUNDS, LEX_BOUNDS, st.just(b"BYLEX"), _LIMIT, st.just(b"WITHSCORES")),
    _command("ZRANGEBYSCORE", KEYS, SCORE_BOUNDS, SCORE_BOUNDS, _words(b"WITHSCORES"), _LIMIT),
    _command("ZRANK", KEYS, MEMBERS),
    _command("ZREM", KEYS, _many(MEMBERS)),
    _command("ZREMRANGEBYRANK", KEYS, SMALL, SMALL),
    _command("ZREMRANGEBYSCORE", KEYS, SCORE_BOUNDS, SCORE_BOUNDS),
    _command("ZREVRANGE", KEYS, SMALL, SMALL, _words(b"WITHSCORES")),
    _command("ZREVRANGEBYSCORE", KEYS, SCORE_BOUNDS, SCORE_BOUNDS, _words(b"WITHSCORES"), _LIMIT),
    _command("ZREVRANK", KEYS, MEMBERS),
    _command("ZSCAN", KEYS, st.just(b"0"), _SCAN, _ALL_AT_ONCE),
    _command("ZSCORE", KEYS, MEMBERS),
]
LEX = [
    _command("ZADD", KEYS, st.just(b"1"), MEMBERS),
    _command("ZLEXCOUNT", KEYS, LEX_BOUNDS, LEX_BOUNDS),
    _command("ZRANGE", KEYS, LEX_BOUNDS, LEX_BOUNDS, st.just(b"BYLEX"), _words(b"REV"), _LIMIT),
    _command("ZRANGEBYLEX", KEYS, LEX_BOUNDS, LEX_BOUNDS, _LIMIT),
    _command("ZREMRANGEBYLEX", KEYS, LEX_BOUNDS, LEX_BOUNDS),
    _command("ZREVRANGEBYLEX", KEYS, LEX_BOUNDS, LEX_BOUNDS, _LIMIT),
]
"""Ranges by bytes mean something only in a set whose scores are all the same."""
GENERIC = [
    _command(
        "COPY", KEYS, KEYS, _words(b"REPLACE"), st.sampled_from([[], [b"DB", b"0"], [b"DB", b"x"], [b"y"]])
    ),
    _command("DBSIZE"),
    _command("DEL", _many(KEYS)),
    _command("EXISTS", _many(KEYS)),
    _command("EXPIRE", KEYS, WHEN, _words(b"NX", b"XX", b"GT", b"LT", b"y")),
    _command("EXPIREAT", KEYS, AT_SECONDS, _words(b"NX", b"XX", b"GT", b"LT")),
    _command("EXPIRETIME", KEYS),
    _command("FLUSHALL", _words(b"ASYNC", b"y")),
    _command("KEYS", PATTERNS),
    _command("OBJECT", st.just(b"ENCODING"), KEYS),
    _command("OBJECT", st.sampled_from([b"FREQ", b"IDLETIME", b"REFCOUNT"]), KEYS),
    _command("PERSIST", KEYS),
    _command("PEXPIRE", KEYS, WHEN, _words(b"NX", b"XX", b"GT", b"LT")),
    _command("PEXPIREAT", KEYS, AT_MILLISECONDS, _words(b"NX", b"XX", b"GT", b"LT")),
    _command("PEXPIRETIME", KEYS),
    _command("PTTL", KEYS),
    _command("RANDOMKEY"),
    _command("RENAME", KEYS, KEYS),
    _command("RENAMENX", KEYS, KEYS),
    _command(
        "SCAN", st.sampled_from([b"0", b"x"]), _SCAN, st.sampled_from([[], [b"TYPE", b"hash"]]), _ALL_AT_ONCE
    ),
    _command("TOUCH", _many(KEYS)),
    _command("TTL", KEYS),
    _command("TYPE", KEYS),
    _command("UNLINK", _many(KEYS)),
]
TRANSACTIONS = [
    _command("DISCARD"),
    *[_command("EXEC")] * 2,
    *[_command("MULTI")] * 2,
    _command("UNWATCH"),
    _command("WATCH", _many(KEYS)),
    _command("NOSUCHCOMMAND", _words(b"x")),
    _command("PING"),
]


def specs() -> list[CommandSpec]:
    """The specs of all commands on plain keys."""
    return [*STRING_COMMANDS, *HASH_COMMANDS, *ZSET_COMMANDS, *KEY_COMMANDS, *TRANSACTION_COMMANDS]
