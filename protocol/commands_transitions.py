"""Prefixes as wholes: transactions, transitions, how long they are kept, what they were made by."""

from __future__ import annotations

from .spec import CommandSpec, Example, after, block, integer, key, many, oneof, optional, string, word

WRITE, REMOVE, READ = ("write", "denyoom"), ("write",), ("readonly",)
ONE = (1, 1, 1)
TXN_ID = "0f3a5c7e9b1d2f4a6c8e0b3d5f7a9c1e"

_TRANSACTIONS = (
    CommandSpec(
        name="KV.PREFIX.ABORT",
        summary="Ends a transaction of this connection without a trace.",
        group="prefix",
        reply="OK; TXNDEAD when it was published, NOTXN when this connection has none of that id.",
        parameters=(string("txn"),),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        usage="txn",
        examples=(Example(f"KV.PREFIX.ABORT {TXN_ID}", "OK"),),
    ),
    CommandSpec(
        name="KV.PREFIX.BEGIN",
        summary="Begins a transaction: rows stored with its id are seen by nobody before it is published.",
        group="prefix",
        reply="The transaction's id. It adds to the rows the namespace has, or with FROM to the first rows "
        "of another one. It ends when its connection does, or when it is left alone for LEASE milliseconds "
        "(60000 if not said).",
        parameters=(
            key("namespace"),
            oneof(
                "layout",
                block(
                    "uniform",
                    after("KV", block("rows", integer("kv-dim"), string("format"))),
                    after("LAYERS", integer("layers")),
                ),
                block(
                    "heterogeneous",
                    word("SCHEMA"),
                    after("K", integer("layers")),
                    many(string("fmt=format[,dim=n][,rope=n]")),
                    after("V", integer("layers")),
                    many(string("fmt=format[,dim=n][,rope=n]")),
                ),
            ),
            optional(after("FROM", block("parent", key("namespace"), integer("tokens")))),
            optional(after("TOKENS", string("u32-ids"))),
            optional(after("MODEL", string("digest"))),
            optional(after("MANIFEST", string("msgpack"))),
            optional(after("PREFILL_MS", integer("milliseconds"))),
            optional(after("LEASE", integer("milliseconds"))),
        ),
        flags=WRITE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        complexity="O(L + N), L = layers, N = tokens",
        usage="ns_key KV kv_dim vquant LAYERS n",
        examples=(Example("KV.PREFIX.BEGIN demo KV 192 fp16 LAYERS 30 LEASE 5000", f'"{TXN_ID}"'),),
    ),
    CommandSpec(
        name="KV.PREFIX.PUBLISH",
        summary="Makes a transaction visible in one step; the predecessor is gone as a whole.",
        group="prefix",
        reply="The receipt: namespace, generation, tokens, and a digest of the rows that it brought. Of a "
        "published transaction the same again, on any connection, also after a restart. An error when a "
        "layer lacks rows; STALE when the namespace has changed meanwhile.",
        parameters=(string("txn"),),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        complexity="O(L + P), L = layers, P = megabytes stored",
        usage="txn",
        examples=(
            Example(
                f"KV.PREFIX.PUBLISH {TXN_ID}",
                '1) "demo" 2) (integer) 12 3) (integer) 2048 4) "9f2b6c1d3e5a7088"',
            ),
        ),
    ),
)

_TRANSITIONS = (
    CommandSpec(
        name="KV.PREFIX.FORK",
        summary="Makes a prefix of the first rows of another one, all if not said; no rows are copied.",
        group="prefix",
        reply="The generation of the child. Neither sees later changes of the other.",
        parameters=(key("namespace"), key("child"), optional(integer("tokens"))),
        flags=WRITE,
        categories=("kv", "write", "fast"),
        keys=(1, 2, 1),
        complexity="O(L), L = layers",
        usage="ns_key child [tokens]",
        examples=(Example("KV.PREFIX.FORK demo branch 1024", "(integer) 13"),),
    ),
    CommandSpec(
        name="KV.PREFIX.TRUNCATE",
        summary="Cuts every layer of both sides to so many rows.",
        group="prefix",
        reply="The generation of what is left. State blobs go when rows do.",
        parameters=(key("namespace"), integer("tokens")),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        complexity="O(L), L = layers",
        usage="ns_key tokens",
        examples=(Example("KV.PREFIX.TRUNCATE demo 512", "(integer) 14"),),
    ),
    CommandSpec(
        name="V.REORDER",
        summary="Session i gets what session order[i] held, in one step, as beams do; no rows are copied.",
        group="vstore",
        reply="The generation of what changed. Rows move with their scales; schemas and sides must agree.",
        parameters=(many(key("session")), string("order")),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        keys=(1, -2, 1),
        complexity="O(N × L), N = sessions, L = layers",
        usage="session_id [session_id ...] order",
        examples=(Example("V.REORDER beam0 beam1 beam2 1,1,0", "(integer) 15"),),
    ),
)

_KEEPING = (
    CommandSpec(
        name="KV.PREFIX.EXPIRE",
        summary="Lets a prefix, or a session that belongs to none, end after some seconds, or not any more.",
        group="prefix",
        reply="1, or 0 when there is no such prefix. From then on it is a miss, and reading it is EXPIRED.",
        parameters=(key("namespace"), oneof("when", integer("seconds"), word("PERSIST"))),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="ns_key seconds|PERSIST",
        examples=(Example("KV.PREFIX.EXPIRE demo 3600", "(integer) 1"),),
    ),
    CommandSpec(
        name="KV.PREFIX.PIN",
        summary="Keeps a prefix, or a session that belongs to none, from being evicted, once more.",
        group="prefix",
        reply="How many pins hold it, an integer.",
        parameters=(key("namespace"),),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="ns_key",
        examples=(Example("KV.PREFIX.PIN demo", "(integer) 1"),),
    ),
    CommandSpec(
        name="KV.PREFIX.TTL",
        summary="How long a prefix, or a session that belongs to none, has left.",
        group="prefix",
        reply="Seconds; -1 when it does not end, -2 when it is not there.",
        parameters=(key("namespace"),),
        flags=("readonly", "fast"),
        categories=("kv", "read", "fast"),
        keys=ONE,
        usage="ns_key",
        examples=(Example("KV.PREFIX.TTL demo", "(integer) 3600"),),
    ),
    CommandSpec(
        name="KV.PREFIX.UNPIN",
        summary="Takes one pin away.",
        group="prefix",
        reply="How many pins are left, an integer.",
        parameters=(key("namespace"),),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="ns_key",
        examples=(Example("KV.PREFIX.UNPIN demo", "(integer) 0"),),
    ),
    CommandSpec(
        name="KV.PREFIX.VERIFY",
        summary="Reads a prefix and checks every digest again.",
        group="prefix",
        reply="The bytes checked. What fails is QUARANTINED: a miss until it is stored anew.",
        parameters=(key("namespace"),),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(B), B = bytes of the prefix",
        usage="ns_key",
        examples=(Example("KV.PREFIX.VERIFY demo", "(integer) 25165824"),),
    ),
)

_MANIFESTS = (
    CommandSpec(
        name="KV.PREFIX.ADMIT",
        summary="Whether the rows of a prefix are those that someone with this manifest would have computed.",
        group="prefix",
        reply="Namespace, generation, and how many tokens may be reused; or INCOMPATIBLE with the first "
        "identity field that differs.",
        parameters=(key("namespace"), string("msgpack")),
        flags=READ,
        categories=("kv", "read", "fast"),
        keys=ONE,
        complexity="O(F + N), F = fields, N = tokens",
        usage="ns_key manifest",
        examples=(Example('KV.PREFIX.ADMIT demo "\\x80"', '1) "demo" 2) (integer) 12 3) (integer) 2048'),),
    ),
    CommandSpec(
        name="KV.PREFIX.MANIFEST",
        summary="What a prefix was made by: a msgpack map, to be read or set.",
        group="prefix",
        reply="The manifest, or null; OK for SET.",
        parameters=(key("namespace"), optional(after("SET", string("msgpack")))),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="ns_key [SET manifest]",
        examples=(Example('KV.PREFIX.MANIFEST demo SET "\\x80"', "OK"),),
    ),
)

_LEDGER = (
    CommandSpec(
        name="V.LEDGER",
        summary="Where the bytes of a session, a prefix or the whole store are; each is in one term.",
        group="vstore",
        reply="Lines of name:value. logical_* counts rows for each that can read them, physical_* counts "
        "what pages take, once; physical_total is accounted_bytes; resident_bytes is what the file system "
        "says.",
        parameters=(optional(key("session-or-namespace")),),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(S + P), S = sessions, P = pages",
        examples=(Example("V.LEDGER demo", '"logical_codes:0\\r\\nlogical_scales:0\\r\\n…"'),),
    ),
)

TRANSITION_COMMANDS = (*_LEDGER, *_TRANSACTIONS, *_TRANSITIONS, *_KEEPING, *_MANIFESTS)
