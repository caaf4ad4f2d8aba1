"""Hashes and sorted sets under plain keys."""

from __future__ import annotations

from functools import partial

from .data_spec import NX_XX, READ, REMOVE, SCAN, SLOW_REMOVE, WRITE, data
from .spec import Parameter, after, block, integer, key, many, oneof, optional, pattern, string, word, words

_hash = partial(data, group="hash")
_zset = partial(data, group="sorted-set")

KEY = key("key")
FIELD = string("field")
VALUE = string("value")
PAIRS = many(block("data", FIELD, VALUE))
MEMBER = string("member")
CURSOR = integer("cursor")
MATCH = optional(after("MATCH", pattern("pattern")))
COUNT = optional(after("COUNT", integer("count")))
FLOAT = Parameter("increment", "double")
MIN, MAX = string("min"), string("max")
LIMIT = optional(after("LIMIT", block("limit", integer("offset"), integer("count"))))
WITHSCORES = optional(word("WITHSCORES"))
RANGED = "O(log N + M), M = members in the range"

HASH_COMMANDS = (
    _hash(
        "HDEL", "Removes fields, and the hash with its last one.", "How many there were, an integer.",
        KEY, many(FIELD), flags=REMOVE, complexity="O(N), N = fields",
        shows=("HDEL user name", "(integer) 1"),
    ),
    _hash(
        "HEXISTS", "Whether a hash has a field.", "1 or 0.",
        KEY, FIELD, flags=READ, shows=("HEXISTS user name", "(integer) 1"),
    ),
    _hash(
        "HGET", "The value of a field.", "The value, or null.",
        KEY, FIELD, flags=READ, shows=("HGET user name", '"Ada"'),
    ),
    _hash(
        "HGETALL", "All fields and their values.", "A map.",
        KEY, flags=SCAN, complexity="O(N), N = fields", shows=("HGETALL user", '1) "name"'),
    ),
    _hash(
        "HINCRBY", "Adds to an integer field; a missing field is 0.", "The result, an integer.",
        KEY, FIELD, integer("increment"), flags=WRITE, shows=("HINCRBY user visits 1", "(integer) 1"),
    ),
    _hash(
        "HINCRBYFLOAT", "Adds to a decimal field; a missing field is 0.", "The result, a bulk string.",
        KEY, FIELD, FLOAT, flags=WRITE, shows=("HINCRBYFLOAT user score 0.5", '"0.5"'),
    ),
    _hash(
        "HKEYS", "All fields.", "An array.",
        KEY, flags=SCAN, complexity="O(N), N = fields", shows=("HKEYS user", '1) "name"'),
    ),
    _hash(
        "HLEN", "How many fields a hash has.", "An integer, 0 for a missing key.",
        KEY, flags=READ, shows=("HLEN user", "(integer) 2"),
    ),
    _hash(
        "HMGET", "The values of several fields.", "An array: a value, or null, for each field.",
        KEY, many(FIELD), flags=READ, complexity="O(N), N = fields",
        shows=("HMGET user name age", '1) "Ada"'),
    ),
    _hash(
        "HMSET", "Sets fields; HSET does the same and counts.", "OK.",
        KEY, PAIRS, flags=WRITE, complexity="O(N), N = fields", shows=("HMSET user name Ada", "OK"),
    ),
    _hash(
        "HSCAN", "Goes through the fields of a hash, some at a time.",
        "An array of two: the next cursor, 0 at the end, and an array of fields and values.",
        KEY, CURSOR, MATCH, COUNT, flags=SCAN, complexity="O(N), N = COUNT",
        shows=("HSCAN user 0", '1) "0"'),
    ),
    _hash(
        "HSET", "Sets fields.", "How many are new, an integer.",
        KEY, PAIRS, flags=WRITE, complexity="O(N), N = fields", shows=("HSET user name Ada", "(integer) 1"),
    ),
    _hash(
        "HSETNX", "Sets a field if it is not there.", "1 or 0.",
        KEY, FIELD, VALUE, flags=WRITE, shows=("HSETNX user name Ada", "(integer) 0"),
    ),
    _hash(
        "HSTRLEN", "The length of a field's value.", "An integer, 0 for a missing field.",
        KEY, FIELD, flags=READ, shows=("HSTRLEN user name", "(integer) 3"),
    ),
    _hash(
        "HVALS", "All values.", "An array.",
        KEY, flags=SCAN, complexity="O(N), N = fields", shows=("HVALS user", '1) "Ada"'),
    ),
)  # fmt: skip

ZSET_COMMANDS = (
    _zset(
        "ZADD", "Adds members with scores, or changes their scores.",
        "How many are new (with CH: or changed), an integer; with INCR the new score, or null.",
        KEY, optional(NX_XX), optional(oneof("comparison", *words("GT LT"))), optional(word("CH")),
        optional(word("INCR")), many(block("data", Parameter("score", "double"), MEMBER)), flags=WRITE,
        complexity="O(M log N), M = members given", shows=("ZADD recent 7 doc", "(integer) 1"),
    ),
    _zset(
        "ZCARD", "How many members there are.", "An integer, 0 for a missing key.",
        KEY, flags=READ, shows=("ZCARD recent", "(integer) 3"),
    ),
    _zset(
        "ZCOUNT", "How many members have scores within a range; `(` before a bound leaves it out.",
        "An integer.",
        KEY, MIN, MAX, flags=READ, complexity=RANGED, shows=("ZCOUNT recent 1 (7", "(integer) 2"),
    ),
    _zset(
        "ZINCRBY", "Adds to the score of a member; a missing one has 0.", "The new score.",
        KEY, FLOAT, MEMBER, flags=WRITE, complexity="O(log N)", shows=("ZINCRBY recent 2 doc", '"9"'),
    ),
    _zset(
        "ZLEXCOUNT", "How many members lie within a range of bytes, all scores being equal.", "An integer.",
        KEY, MIN, MAX, flags=READ, complexity=RANGED, shows=("ZLEXCOUNT names [a (b", "(integer) 4"),
    ),
    _zset(
        "ZMSCORE", "The scores of several members.", "An array: a score, or null, for each.",
        KEY, many(MEMBER), flags=READ, complexity="O(N), N = members",
        shows=("ZMSCORE recent doc", '1) "9"'),
    ),
    _zset(
        "ZPOPMAX", "Removes the members with the highest scores.", "An array of members and scores.",
        KEY, optional(integer("count")), flags=REMOVE, complexity="O(M log N), M = members removed",
        shows=("ZPOPMAX recent", '1) "doc"'),
    ),
    _zset(
        "ZPOPMIN", "Removes the members with the lowest scores.", "An array of members and scores.",
        KEY, optional(integer("count")), flags=REMOVE, complexity="O(M log N), M = members removed",
        shows=("ZPOPMIN recent", '1) "old"'),
    ),
    _zset(
        "ZRANGE", "Members from one index, score or name to another; `REV` from the high end.",
        "An array of members; with WITHSCORES also their scores.",
        KEY, string("start"), string("stop"), optional(oneof("sortby", *words("BYSCORE BYLEX"))),
        optional(word("REV")), LIMIT, WITHSCORES, flags=SCAN,
        complexity="O(log N + M), M = members in the range; by index O(distance from the nearer end)",
        shows=("ZRANGE recent 0 -1 REV", '1) "doc"'),
    ),
    _zset(
        "ZRANGEBYLEX", "Members within a range of bytes, all scores being equal.", "An array.",
        KEY, MIN, MAX, LIMIT, flags=SCAN, complexity=RANGED, shows=("ZRANGEBYLEX names [a (b", '1) "ada"'),
    ),
    _zset(
        "ZRANGEBYSCORE", "Members with scores within a range.",
        "An array of members; with WITHSCORES also their scores.",
        KEY, MIN, MAX, WITHSCORES, LIMIT, flags=SCAN, complexity=RANGED,
        shows=("ZRANGEBYSCORE recent -inf 7", '1) "old"'),
    ),
    _zset(
        "ZRANK", "How many members come before a member.", "An integer, or null.",
        KEY, MEMBER, flags=READ, complexity="O(N), N = the rank", shows=("ZRANK recent doc", "(integer) 2"),
    ),
    _zset(
        "ZREM", "Removes members, and the set with its last one.", "How many there were, an integer.",
        KEY, many(MEMBER), flags=REMOVE, complexity="O(M log N), M = members given",
        shows=("ZREM recent doc", "(integer) 1"),
    ),
    _zset(
        "ZREMRANGEBYLEX", "Removes members within a range of bytes, all scores being equal.",
        "How many there were, an integer.",
        KEY, MIN, MAX, flags=SLOW_REMOVE, complexity=RANGED,
        shows=("ZREMRANGEBYLEX names [a (b", "(integer) 4"),
    ),
    _zset(
        "ZREMRANGEBYRANK", "Removes members from one index to another.", "How many there were, an integer.",
        KEY, integer("start"), integer("stop"), flags=SLOW_REMOVE, complexity=RANGED,
        shows=("ZREMRANGEBYRANK recent 0 9", "(integer) 3"),
    ),
    _zset(
        "ZREMRANGEBYSCORE", "Removes members with scores within a range.",
        "How many there were, an integer.",
        KEY, MIN, MAX, flags=SLOW_REMOVE, complexity=RANGED,
        shows=("ZREMRANGEBYSCORE recent -inf (7", "(integer) 2"),
    ),
    _zset(
        "ZREVRANGE", "Members from one index to another, from the high end.",
        "An array of members; with WITHSCORES also their scores.",
        KEY, integer("start"), integer("stop"), WITHSCORES, flags=SCAN, complexity=RANGED,
        shows=("ZREVRANGE recent 0 0", '1) "doc"'),
    ),
    _zset(
        "ZREVRANGEBYLEX", "Members within a range of bytes, from the high end.", "An array.",
        KEY, MAX, MIN, LIMIT, flags=SCAN, complexity=RANGED,
        shows=("ZREVRANGEBYLEX names (b [a", '1) "ada"'),
    ),
    _zset(
        "ZREVRANGEBYSCORE", "Members with scores within a range, from the high end.",
        "An array of members; with WITHSCORES also their scores.",
        KEY, MAX, MIN, WITHSCORES, LIMIT, flags=SCAN, complexity=RANGED,
        shows=("ZREVRANGEBYSCORE recent 7 -inf", '1) "doc"'),
    ),
    _zset(
        "ZREVRANK", "How many members come after a member.", "An integer, or null.",
        KEY, MEMBER, flags=READ, complexity="O(N), N = the rank",
        shows=("ZREVRANK recent doc", "(integer) 0"),
    ),
    _zset(
        "ZSCAN", "Goes through the members of a sorted set, some at a time.",
        "An array of two: the next cursor, 0 at the end, and an array of members and scores.",
        KEY, CURSOR, MATCH, COUNT, flags=SCAN, complexity="O(N), N = COUNT",
        shows=("ZSCAN recent 0", '1) "0"'),
    ),
    _zset(
        "ZSCORE", "The score of a member.", "The score, or null.",
        KEY, MEMBER, flags=READ, shows=("ZSCORE recent doc", '"9"'),
    ),
)  # fmt: skip
