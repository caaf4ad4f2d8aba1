"""Prefix transactions: begun, published, aborted."""

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
            optional(after("FROM", block("parent", string("namespace"), integer("tokens")))),
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

TRANSITION_COMMANDS = _TRANSACTIONS
