"""Attention over stored rows."""

from __future__ import annotations

from .spec import CommandSpec, Example, Parameter, after, block, integer, key, many, optional, string, word

_READ, _WRITE = ("readonly",), ("write", "denyoom")
_KV_READ, _KV_WRITE = ("kv", "read", "slow"), ("kv", "write", "slow")
_ONE = (1, 1, 1)
_ROWS = (key("session"), integer("layer"))
_WINDOW = integer("fa-window")
_FLOATS = "float32, little-endian, head by head"
_OVER_ALL = "O(N H D M), N = rows in the window, H = query heads, D = their size, M = queries"
_OVER_SOME = "O(K H D), K = rows chosen; QUERY_SPARSE_AUTO also O(N H D / B)"


def _window_and_selector() -> Parameter:
    return optional(block("window", _WINDOW, optional(integer("selector-id"))))


ATTEND_COMMANDS = (
    CommandSpec(
        name="ATTEND.PREFIX.DROP",
        summary="Removes rows that ATTEND.PREFIX.STORE has stored. A prefix of that name stays.",
        group="attention",
        reply="How many of the names there were.",
        parameters=(many(key("session")),),
        flags=("write",),
        categories=_KV_WRITE,
        keys=(1, -1, 1),
        complexity="O(L), L = layers",
        usage="session_id [session_id ...]",
        examples=(Example("ATTEND.PREFIX.DROP demo", "(integer) 0"),),
    ),
    CommandSpec(
        name="ATTEND.PREFIX.LOOKUP",
        summary="Whether attention over a layer's rows can be asked for.",
        group="attention",
        reply="HIT; COLD when the rows are stored but not ready, and the settings have such a query refused; "
        "MISS.",
        parameters=_ROWS,
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        usage="session_id layer_id",
        examples=(Example("ATTEND.PREFIX.LOOKUP demo 0", "MISS"),),
    ),
    CommandSpec(
        name="ATTEND.PREFIX.QUERY",
        summary="Attention of queries over the stored rows of a layer. Fewer heads may be stored than asked "
        "with: they are shared in order. All rows count, or the last of them with a window; top_k is taken "
        "and not used.",
        group="attention",
        reply=f"The output, {_FLOATS}. After it, with more than one query or with LSE, the log-sum-exp of "
        "each query's scaled scores.",
        parameters=(
            *_ROWS,
            integer("heads"),
            integer("head-dim"),
            integer("top-k"),
            string("q"),
            optional(_WINDOW),
            optional(word("LSE")),
        ),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity=_OVER_ALL,
        usage="session_id layer_id H D top_k Q_blob [fa_window]",
    ),
    CommandSpec(
        name="ATTEND.PREFIX.QUERY_FUSED",
        summary="The same with rows of one's own that follow the stored ones: causal among themselves, and "
        "under one softmax with them. The window counts stored rows only.",
        group="attention",
        reply=f"The output, {_FLOATS}.",
        parameters=(
            *_ROWS,
            integer("query-heads"),
            integer("head-dim"),
            integer("suffix-rows"),
            integer("kv-heads"),
            string("q"),
            string("k-suffix"),
            string("v-suffix"),
            string("head-map"),
            optional(_WINDOW),
        ),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity=_OVER_ALL,
        usage="session_id layer_id H_q D S_suf H_kv Q K_suf V_suf head_map [fa_window]",
    ),
    CommandSpec(
        name="ATTEND.PREFIX.QUERY_SPARSE",
        summary="Attention of one query of each head over rows that it names, and over those in the window.",
        group="attention",
        reply=f"The output, {_FLOATS}; zeros for a head that names no row.",
        parameters=(
            *_ROWS,
            integer("heads"),
            integer("head-dim"),
            integer("most"),
            string("q"),
            string("i32-rows"),
            string("u32-counts"),
            optional(_WINDOW),
        ),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity=_OVER_SOME,
        usage="session_id layer_id H D K_sparse_max Q indices counts [fa_window]",
    ),
    CommandSpec(
        name="ATTEND.PREFIX.QUERY_SPARSE_AUTO",
        summary="Attention of one query of each head over the blocks of rows that rank highest for it, and "
        "over the window. Selector 0 ranks by the mean of a block's keys, 1 by Quest's upper bound.",
        group="attention",
        reply=f"The output, {_FLOATS}.",
        parameters=(
            *_ROWS,
            integer("query-heads"),
            integer("head-dim"),
            integer("block"),
            integer("blocks"),
            integer("kv-heads"),
            string("q"),
            string("head-map"),
            _window_and_selector(),
        ),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity=_OVER_SOME,
        usage="session_id layer_id H_q D B K_top H_kv Q head_map [fa_window]",
    ),
    CommandSpec(
        name="ATTEND.PREFIX.QUERY_SPARSE_AUTO_FUSED",
        summary="The same with rows of one's own that follow the stored ones, all of which are seen.",
        group="attention",
        reply=f"The output, {_FLOATS}.",
        parameters=(
            *_ROWS,
            integer("query-heads"),
            integer("head-dim"),
            integer("block"),
            integer("blocks"),
            integer("kv-heads"),
            integer("suffix-rows"),
            string("q"),
            string("k-suffix"),
            string("v-suffix"),
            string("head-map"),
            _window_and_selector(),
        ),
        flags=_READ,
        categories=_KV_READ,
        keys=_ONE,
        complexity=_OVER_SOME,
        usage="sid layer H_q D B K_top H_kv S_suf Q K_suf V_suf head_map [fa_window]",
    ),
    CommandSpec(
        name="ATTEND.PREFIX.STORE",
        summary="Stores keys and values of a layer for attention, in one step and in the place of those "
        "before. They are a prefix of their own, <session>:attend. What is stored as a prefix already "
        "needs none of this: ask for it by its name.",
        group="attention",
        reply="OK.",
        parameters=(
            *_ROWS,
            integer("heads"),
            integer("rows"),
            integer("head-dim"),
            string("k"),
            string("v"),
            optional(after("VQUANT", string("format"))),
        ),
        flags=_WRITE,
        categories=_KV_WRITE,
        keys=_ONE,
        complexity="O(B), B = bytes",
        usage="session_id layer_id H N D K_blob V_blob",
    ),
)
