"""Value rows by the likeness of their keys."""

from __future__ import annotations

from .spec import CommandSpec, Example, after, integer, key, many, optional, string

_READ, _WRITE = ("readonly",), ("write", "denyoom")
_KV_READ, _KV_WRITE = ("kv", "read", "slow"), ("kv", "write", "slow")
_ONE = (1, 1, 1)


SELECT_COMMANDS = (
    CommandSpec(
        name="ATTEND.CREATE",
        summary="Makes a session of keys and values whose sides may have different dims, or finds it when it "
        "exists with the same. It is a prefix of its own, <session>:topk.",
        group="attention",
        reply="The session's slot, an integer. With BOUNDARY above 0 all layers keep values in "
        "BOUNDARY_VQUANT: how many layers will follow is not known.",
        parameters=(
            key("session"),
            integer("key-dim"),
            integer("value-dim"),
            optional(after("KQUANT", string("format"))),
            optional(after("VQUANT", string("format"))),
            optional(after("BOUNDARY", integer("layers"))),
            optional(after("BOUNDARY_VQUANT", string("format"))),
            optional(after("ROPE", integer("elements"))),
        ),
        flags=_WRITE,
        categories=_KV_WRITE,
        keys=_ONE,
        usage="<session_id> <key_dim> <value_dim>",
        examples=(Example("ATTEND.CREATE demo 64 64", "(integer) 1"),),
    ),
    CommandSpec(
        name="ATTEND.DROP",
        summary="Removes sessions that ATTEND.CREATE has made.",
        group="attention",
        reply="How many there were.",
        parameters=(many(key("session")),),
        flags=("write",),
        categories=_KV_WRITE,
        keys=(1, -1, 1),
        usage="<session_id> [<session_id> ...]",
        examples=(Example("ATTEND.DROP demo", "(integer) 1"),),
    ),
    CommandSpec(
        name="ATTEND.FINALIZE",
        summary="Builds an index over the keys of a layer when there are many and usearch is installed; "
        "until then, and after more rows have come, keys are compared one by one.",
        group="attention",
        reply="OK.",
        parameters=(key("session"), integer("layer")),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity="O(N log N), N = rows",
        usage="<session_id> <layer_id>",
    ),
    CommandSpec(
        name="ATTEND.INFO",
        summary="Figures about the sessions that ATTEND.CREATE has made, as far as the user may read them.",
        group="attention",
        reply="Lines of name:value.",
        flags=_READ,
        categories=_KV_READ,
        complexity="O(S), S = sessions",
        examples=(Example("ATTEND.INFO", "sessions:0"),),
    ),
    CommandSpec(
        name="ATTEND.QUERY",
        summary="The value rows whose keys have the greatest inner product with a query.",
        group="attention",
        reply="min(k, rows) rows, float32, the best first; an empty array when the layer has none.",
        parameters=(key("session"), integer("layer"), integer("k"), string("query")),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity="O(N D), N = rows; with an index O(log N)",
        usage="<session_id> <layer_id> <k> <query>",
    ),
    CommandSpec(
        name="ATTEND.QUERYBATCH",
        summary="Attention of one query of each head over the top_k rows that score highest, all sent along.",
        group="attention",
        reply="The output, float32, head by head.",
        parameters=(
            integer("heads"),
            integer("rows"),
            integer("head-dim"),
            integer("top-k"),
            string("q"),
            string("k"),
            string("v"),
        ),
        flags=_READ,
        categories=_KV_READ,
        complexity="O(N H D), N = rows, H = heads, D = their size",
        usage="H N D top_k Q K V",
    ),
    CommandSpec(
        name="ATTEND.STORE",
        summary="Adds rows at the end of a layer.",
        group="attention",
        reply="OK.",
        parameters=(
            key("session"),
            integer("layer"),
            integer("rows"),
            string("keys"),
            string("values"),
        ),
        flags=_WRITE,
        categories=_KV_WRITE,
        keys=_ONE,
        complexity="O(B), B = bytes",
        usage="<session_id> <layer_id> <num_tokens> <keys> <values>",
    ),
)
