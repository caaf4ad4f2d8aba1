"""The store's own commands: sessions of rows (`V.*`) and prefixes (`KV.PREFIX.*`)."""

from __future__ import annotations

from .spec import (
    CommandSpec,
    Example,
    after,
    block,
    integer,
    key,
    many,
    oneof,
    optional,
    string,
    word,
    words,
)

WRITE, READ = ("write", "denyoom"), ("readonly",)
REMOVE = ("write",)
ONE = (1, 1, 1)

_FETCH_FORMAT = optional(after("FMT", oneof("element", *words("F32 F16 NATIVE RAW"))))
_AT = optional(after("AT", integer("generation")))
_STORE_FORMAT = optional(after("FMT", oneof("element", *words("F32 F16 BF16 RAW"))))

_V = (
    CommandSpec(
        name="V.CREATE",
        summary="Makes a session: one dim and format for all layers, or a schema that has them by layer.",
        group="vstore",
        reply="The session's slot, an integer. The same schema again changes nothing, else SCHEMAMISMATCH.",
        parameters=(
            key("session"),
            oneof(
                "layout",
                block("uniform", integer("dim"), optional(after("VQUANT", string("format")))),
                block(
                    "heterogeneous",
                    optional(integer("default-dim")),
                    after("SCHEMA", integer("layers")),
                    many(string("fmt=format[,dim=n][,rope=n]")),
                ),
            ),
        ),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        keys=ONE,
        complexity="O(L), L = layers of a schema",
        usage="session_id value_dim [VQUANT fmt] OR sid [default_dim] SCHEMA N spec_0 ... spec_{N-1}",
        examples=(
            Example("V.CREATE demo 2 VQUANT fp16", "(integer) 0"),
            Example("V.CREATE mixed SCHEMA 2 fmt=fp16,dim=64 fmt=mlx4g32,dim=64", "(integer) 1"),
        ),
    ),
    CommandSpec(
        name="V.DROP",
        summary="Removes sessions.",
        group="vstore",
        reply="How many there were, an integer.",
        parameters=(many(key("session")),),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=(1, -1, 1),
        complexity="O(N), N = sessions",
        usage="session_id [session_id ...]",
        examples=(Example("V.DROP demo", "(integer) 1"),),
    ),
    CommandSpec(
        name="V.FETCH",
        summary="Rows of one layer by id or as a range, or a range of the first layers; ends are exclusive.",
        group="vstore",
        reply="A bulk string of the rows, little-endian, float32 without FMT; for BATCH an array of them. "
        "Null for a layer without rows. Rows that are not stored are an error. AT: the rows of that "
        "generation, or STALE. TXN: as they will be when this transaction of the connection is published.",
        parameters=(
            key("session"),
            oneof(
                "rows",
                block("ids", integer("layer"), many(integer("row")), _FETCH_FORMAT, _AT),
                block(
                    "range",
                    integer("layer"),
                    word("RANGE"),
                    integer("start"),
                    integer("end"),
                    _FETCH_FORMAT,
                    _AT,
                    optional(after("TXN", string("txn"))),
                ),
                block(
                    "batch",
                    word("BATCH"),
                    integer("start"),
                    integer("end"),
                    optional(integer("num-layers")),
                    _FETCH_FORMAT,
                    _AT,
                ),
            ),
        ),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(B), B = bytes fetched",
        usage="session_id layer_id token_id [...]",
        examples=(Example("V.FETCH demo 0 RANGE 0 1 FMT RAW", '"\\x00<\\x00@"'),),
    ),
    CommandSpec(
        name="V.FETCHALL",
        summary="A range of both sides of a prefix, all layers or layers a to b - 1, in one streamed reply.",
        group="vstore",
        reply="An array of bulk strings in the order k0 v0 k1 v1 … AT: of that generation, or STALE.",
        parameters=(
            key("k-session"),
            key("v-session"),
            integer("start"),
            integer("end"),
            _FETCH_FORMAT,
            optional(after("LAYERS", block("layers", integer("a"), integer("b")))),
            _AT,
        ),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=(1, 2, 1),
        complexity="O(B), B = bytes fetched",
        usage="k_session v_session start end",
        examples=(Example("V.FETCHALL demo_pk demo_pv 0 1 FMT RAW", '1) "\\x00<\\x00@"'),),
    ),
    CommandSpec(
        name="V.INFO",
        summary="Figures about one session, or about all.",
        group="vstore",
        reply="Lines of name:value.",
        parameters=(optional(key("session")),),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(L), L = layers",
        examples=(Example("V.INFO demo", '"session_idx:0\\r\\nvalue_dim:2\\r\\n…"'),),
    ),
    CommandSpec(
        name="V.MAP",
        summary="Where rows of a session lie in page files, for a client on this machine that maps them.",
        group="vstore",
        reply="As KV.PREFIX.MAP: of rows start to end - 1 of each layer that holds rows, or of layers "
        "a to b - 1. Null when none of them does.",
        parameters=(
            key("session"),
            integer("start"),
            integer("end"),
            optional(after("LAYERS", block("layers", integer("a"), integer("b")))),
        ),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(L), L = layers; the first time O(B), B = bytes",
        usage="session start end",
    ),
    CommandSpec(
        name="V.STOREBATCH",
        summary="Appends rows to a layer, or overwrites rows that are there and not in a closed group.",
        group="vstore",
        reply="OK. A start beyond the layer's rows is an error, and so is a blob of another length. TXN: "
        "nobody sees the rows before the transaction is published; an error ends the transaction.",
        parameters=(
            key("session"),
            integer("layer"),
            integer("start"),
            integer("count"),
            string("blob"),
            _STORE_FORMAT,
            optional(after("TXN", string("txn"))),
        ),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        keys=ONE,
        complexity="O(B), B = bytes stored",
        usage="session_id layer_id start_id count values_blob",
        examples=(Example('V.STOREBATCH demo 0 0 1 "\\x00<\\x00@" FMT F16', "OK"),),
    ),
)

_PREFIX = (
    CommandSpec(
        name="KV.PREFIX.COMMIT",
        summary="Waits until everything acknowledged so far is on the disk.",
        group="prefix",
        reply="OK.",
        flags=REMOVE,
        categories=("kv", "write", "slow"),
        complexity="O(B), B = bytes not yet on the disk",
        examples=(Example("KV.PREFIX.COMMIT", "OK"),),
    ),
    CommandSpec(
        name="KV.PREFIX.DROP",
        summary="Removes namespaces with everything in them.",
        group="prefix",
        reply="How many there were, an integer.",
        parameters=(many(key("namespace")),),
        flags=REMOVE,
        categories=("kv", "write", "fast"),
        keys=(1, -1, 1),
        complexity="O(N), N = namespaces",
        usage="ns_key [ns_key ...]",
        examples=(Example("KV.PREFIX.DROP demo", "(integer) 1"),),
    ),
    CommandSpec(
        name="KV.PREFIX.INFO",
        summary="Figures about all prefixes.",
        group="prefix",
        reply="Lines of name:value.",
        flags=READ,
        categories=("kv", "read", "slow"),
        examples=(Example("KV.PREFIX.INFO", '"registered_prefixes:1\\r\\n…"'),),
    ),
    CommandSpec(
        name="KV.PREFIX.LOOKUP",
        summary="Whether a prefix is stored: both sides, the same rows in the same layers.",
        group="prefix",
        reply="HIT or MISS; with AT, STALE for any other generation. With WAIT, which comes last, a prefix "
        "that somebody has claimed is waited for until it can be restored, or the claim or the time is over.",
        parameters=(
            key("namespace"),
            optional(after("TOKENS", integer("tokens"))),
            optional(after("PREFILL_MS", integer("milliseconds"))),
            _AT,
            optional(after("WAIT", integer("milliseconds"))),
        ),
        flags=("readonly", "fast"),
        categories=("kv", "read", "fast"),
        keys=ONE,
        usage="ns_key",
        examples=(Example("KV.PREFIX.LOOKUP demo", "HIT"),),
    ),
    CommandSpec(
        name="KV.PREFIX.REGISTER",
        summary="Makes the two sessions of a prefix, <namespace>_pk and <namespace>_pv.",
        group="prefix",
        reply="OK. The same schema again changes nothing; another is SCHEMAMISMATCH.",
        parameters=(
            key("namespace"),
            integer("kv-dim"),
            string("format"),
            optional(
                after("BLOCKS", block("blocks", integer("block-size"), integer("count"), string("hashes")))
            ),
            optional(after("PREFILL_MS", integer("milliseconds"))),
            optional(after("MODEL", string("digest"))),
        ),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        keys=ONE,
        complexity="O(N), N = hashes",
        usage="ns_key kv_dim vquant",
        examples=(Example("KV.PREFIX.REGISTER demo 192 fp16 PREFILL_MS 850", "OK"),),
    ),
)

KV_COMMANDS = (*_V, *_PREFIX)
