"""Plain keys of any type, and transactions."""

from __future__ import annotations

from functools import partial

from .data_spec import ALL, READ, REMOVE, SCAN, SLOW_REMOVE, SLOW_WRITE, data
from .spec import (
    CommandSpec,
    Example,
    after,
    integer,
    key,
    many,
    oneof,
    optional,
    pattern,
    string,
    word,
    words,
)

_key = partial(data, group="generic")

KEY = key("key")
NEW_KEY = key("newkey")
TWO = (1, 2, 1)
SUBCOMMAND = (2, 2, 1)
NOWHERE = (0, 0, 0)
CONDITION = optional(oneof("condition", *words("NX XX GT LT")))
SECONDS, MILLISECONDS = integer("seconds"), integer("milliseconds")
AT_SECONDS, AT_MILLISECONDS = integer("unix-time-seconds"), integer("unix-time-milliseconds")

KEY_COMMANDS = (
    _key(
        "COPY", "Makes another key of the same value.", "1, or 0 when it is not done.",
        KEY, key("destination"), optional(after("DB", integer("destination-db"))),
        optional(word("REPLACE")), flags=SLOW_WRITE, keys=TWO, complexity="O(N), N = items of the value",
        shows=("COPY user backup", "(integer) 1"),
    ),
    _key(
        "DEL", "Removes keys.", "How many there were, an integer.",
        many(KEY), flags=SLOW_REMOVE, keys=ALL, complexity="O(N), N = keys",
        shows=("DEL a b", "(integer) 2"),
    ),
    _key(
        "EXISTS", "How many of the keys are there; one named twice counts twice.", "An integer.",
        many(KEY), flags=READ, keys=ALL, complexity="O(N), N = keys", shows=("EXISTS a b", "(integer) 1"),
    ),
    _key(
        "EXPIRE", "Lets a key end after some seconds.", "1, or 0 when it is not done.",
        KEY, SECONDS, CONDITION, flags=REMOVE, shows=("EXPIRE greeting 60", "(integer) 1"),
    ),
    _key(
        "EXPIREAT", "Lets a key end at a time in seconds.", "1, or 0 when it is not done.",
        KEY, AT_SECONDS, CONDITION, flags=REMOVE, shows=("EXPIREAT greeting 1893456000", "(integer) 1"),
    ),
    _key(
        "EXPIRETIME", "When a key ends, in seconds.", "An integer; -1: never, -2: there is no such key.",
        KEY, flags=READ, shows=("EXPIRETIME greeting", "(integer) 1893456000"),
    ),
    _key(
        "KEYS", "Names of the keys that match a pattern. Looks at every key: SCAN does so piecemeal.",
        "An array.",
        pattern("pattern"), flags=SCAN, keys=NOWHERE, complexity="O(N), N = all keys", dangerous=True,
        shows=("KEYS user:*", '1) "user:7"'),
    ),
    _key(
        "PERSIST", "Lets a key end never.", "1, or 0 when it would not have ended.",
        KEY, flags=REMOVE, shows=("PERSIST greeting", "(integer) 1"),
    ),
    _key(
        "PEXPIRE", "Lets a key end after some milliseconds.", "1, or 0 when it is not done.",
        KEY, MILLISECONDS, CONDITION, flags=REMOVE, shows=("PEXPIRE greeting 1500", "(integer) 1"),
    ),
    _key(
        "PEXPIREAT", "Lets a key end at a time in milliseconds.", "1, or 0 when it is not done.",
        KEY, AT_MILLISECONDS, CONDITION, flags=REMOVE,
        shows=("PEXPIREAT greeting 1893456000000", "(integer) 1"),
    ),
    _key(
        "PEXPIRETIME", "When a key ends, in milliseconds.",
        "An integer; -1: never, -2: there is no such key.",
        KEY, flags=READ, shows=("PEXPIRETIME greeting", "(integer) 1893456000000"),
    ),
    _key(
        "PTTL", "In how many milliseconds a key ends.", "An integer; -1: never, -2: there is no such key.",
        KEY, flags=READ, shows=("PTTL greeting", "(integer) 59400"),
    ),
    _key(
        "RANDOMKEY", "A key chosen by chance.", "Its name, or null when there is none.",
        flags=SCAN, keys=NOWHERE, shows=("RANDOMKEY", '"greeting"'),
    ),
    _key(
        "RENAME", "Gives a key another name, in the place of the key that has it.", "OK.",
        KEY, NEW_KEY, flags=SLOW_REMOVE, keys=TWO, shows=("RENAME greeting hello", "OK"),
    ),
    _key(
        "RENAMENX", "Gives a key another name, if no key has it.", "1 or 0.",
        KEY, NEW_KEY, flags=REMOVE, keys=TWO, shows=("RENAMENX greeting hello", "(integer) 0"),
    ),
    _key(
        "SCAN", "Goes through the keys, some at a time.",
        "An array of two: the next cursor, 0 at the end, and an array of names.",
        integer("cursor"), optional(after("MATCH", pattern("pattern"))),
        optional(after("COUNT", integer("count"))), optional(after("TYPE", string("type"))), flags=SCAN,
        keys=NOWHERE, complexity="O(N), N = COUNT", shows=("SCAN 0 MATCH user:*", '1) "0"'),
    ),
    _key(
        "TOUCH", "Notes a use of keys.", "How many there are, an integer.",
        many(KEY), flags=READ, keys=ALL, complexity="O(N), N = keys", shows=("TOUCH a b", "(integer) 2"),
    ),
    _key(
        "TTL", "In how many seconds a key ends.", "An integer; -1: never, -2: there is no such key.",
        KEY, flags=READ, shows=("TTL greeting", "(integer) 59"),
    ),
    _key(
        "TYPE", "The type of a key's value.", "string, hash, zset or none.",
        KEY, flags=READ, shows=("TYPE greeting", "string"),
    ),
    _key(
        "UNLINK", "Removes keys; large values are cleared away later, as DEL does, too.",
        "How many there were, an integer.",
        many(KEY), flags=REMOVE, keys=ALL, complexity="O(N), N = keys", shows=("UNLINK a b", "(integer) 2"),
    ),
    CommandSpec(
        name="OBJECT",
        summary="A container for commands about how a value is kept.",
        group="generic",
        reply="Depends on the subcommand.",
        categories=("slow",),
        container=True,
    ),
    _key(
        "OBJECT|ENCODING", "How Redis would keep the value; here all are in the catalog.",
        "A word, or null.",
        KEY, flags=SCAN, keys=SUBCOMMAND, shows=("OBJECT ENCODING greeting", '"embstr"'),
    ),
    _key(
        "OBJECT|FREQ", "Refused as in a Redis without an LFU policy: uses of keys are not counted.",
        "An error.",
        KEY, flags=SCAN, keys=SUBCOMMAND,
    ),
    CommandSpec(
        name="OBJECT|HELP",
        summary="Lists the subcommands.",
        group="generic",
        reply="An array of lines.",
        flags=("loading", "stale"),
        categories=("keyspace", "slow"),
    ),
    _key(
        "OBJECT|IDLETIME", "How long ago a key was last used, in seconds.", "An integer, or null.",
        KEY, flags=SCAN, keys=SUBCOMMAND, shows=("OBJECT IDLETIME greeting", "(integer) 7"),
    ),
    _key(
        "OBJECT|REFCOUNT", "Always 1: values are not shared.", "1, or null.",
        KEY, flags=SCAN, keys=SUBCOMMAND, shows=("OBJECT REFCOUNT greeting", "(integer) 1"),
    ),
    _key(
        "DBSIZE", "How many prefixes, single sessions and keys are stored.", "An integer.",
        flags=READ, keys=NOWHERE, shows=("DBSIZE", "(integer) 12"),
    ),
    _key(
        "FLUSHALL", "Removes everything: prefixes, sessions and keys.", "OK.",
        optional(oneof("flush-type", *words("ASYNC SYNC"))), flags=SLOW_REMOVE, keys=NOWHERE,
        complexity="O(N), N = everything", dangerous=True, shows=("FLUSHALL", "OK"),
    ),
    _key(
        "FLUSHDB", "Removes everything: there is one database.", "OK.",
        optional(oneof("flush-type", *words("ASYNC SYNC"))), flags=SLOW_REMOVE, keys=NOWHERE,
        complexity="O(N), N = everything", dangerous=True, shows=("FLUSHDB", "OK"),
    ),
)  # fmt: skip

_TRANSACTION = ("noscript", "loading", "stale", "fast")

TRANSACTION_COMMANDS = (
    CommandSpec(
        name="DISCARD",
        summary="Forgets the commands gathered since MULTI, and what is watched.",
        group="transactions",
        reply="OK.",
        flags=_TRANSACTION,
        categories=("fast", "transaction"),
        examples=(Example("DISCARD", "OK"),),
    ),
    CommandSpec(
        name="EXEC",
        summary="Runs the commands gathered since MULTI as one step, unless a watched key has changed.",
        group="transactions",
        reply="An array of their replies; null when a watched key has changed.",
        flags=("noscript", "loading", "stale", "skip_slowlog"),
        categories=("slow", "transaction"),
        complexity="As the commands",
        examples=(Example("EXEC", "1) OK"),),
    ),
    CommandSpec(
        name="MULTI",
        summary="Begins a transaction: the commands that follow are gathered until EXEC.",
        group="transactions",
        reply="OK.",
        flags=_TRANSACTION,
        categories=("fast", "transaction"),
        examples=(Example("MULTI", "OK"),),
    ),
    CommandSpec(
        name="UNWATCH",
        summary="Forgets what is watched.",
        group="transactions",
        reply="OK.",
        flags=_TRANSACTION,
        categories=("fast", "transaction"),
        examples=(Example("UNWATCH", "OK"),),
    ),
    CommandSpec(
        name="WATCH",
        summary="Makes the next EXEC depend on keys: it does nothing when one of them has changed.",
        group="transactions",
        reply="OK.",
        parameters=(many(KEY),),
        flags=_TRANSACTION,
        categories=("fast", "transaction"),
        keys=ALL,
        complexity="O(N), N = keys",
        examples=(Example("WATCH balance", "OK"),),
    ),
)
