"""Prefixes as an operator sees them: listed, explained, warmed, copied."""

from __future__ import annotations

from .spec import CommandSpec, Example, after, block, integer, key, optional, pattern, string

_READ = ("readonly",)
_KV = ("kv", "read", "slow")
_MATCH = optional(after("MATCH", pattern("pattern")))
ONE = (1, 1, 1)

UPKEEP_COMMANDS = (
    CommandSpec(
        name="KV.PREFIX.EXPLAIN",
        summary="Why a namespace would hit or miss, and with TOKENS, where it differs from these.",
        group="prefix",
        reply="A map: answer, reason (empty for a hit), and what is known: since, tokens, layers, k_rows, "
        "v_rows, states, bytes, generation, hits, used, expires, pins; with TOKENS: differs_at, nearest, "
        "nearest_tokens.",
        parameters=(
            key("namespace"),
            optional(after("TOKENS", block("tokens", string("u32-ids")))),
            optional(after("MODEL", string("digest"))),
        ),
        flags=_READ,
        categories=_KV,
        keys=ONE,
        complexity="O(L + N), L = layers, N = tokens",
        usage="ns_key",
        examples=(Example("KV.PREFIX.EXPLAIN demo", '1) "answer"'),),
    ),
    CommandSpec(
        name="KV.PREFIX.LIST",
        summary="All namespaces, or those whose names match a pattern. KV.PREFIX.SCAN does so piecemeal.",
        group="prefix",
        reply="An array of names, in order.",
        parameters=(_MATCH,),
        flags=_READ,
        categories=(*_KV, "dangerous"),
        complexity="O(N), N = namespaces",
        examples=(Example("KV.PREFIX.LIST", '1) "demo"'),),
    ),
    CommandSpec(
        name="KV.PREFIX.SAVE",
        summary="Without a path: waits until everything is on the disk. With one: makes a copy of the whole "
        "store as of one moment, a data directory below saved/ in the server's, which shares page files "
        "with the store.",
        group="prefix",
        reply="OK when it is on the disk. BUSY while another copy is being made.",
        parameters=(optional(string("path")),),
        flags=("admin",),
        categories=("admin", "slow", "dangerous"),
        complexity="O(P + C), P = pages, C = bytes of the catalog",
        examples=(Example("KV.PREFIX.SAVE before-the-upgrade", "OK"),),
    ),
    CommandSpec(
        name="KV.PREFIX.SCAN",
        summary="Goes through the namespaces, some at a time. Each that is there all the while is met once.",
        group="prefix",
        reply="An array of two: the next cursor, 0 at the end, and an array of names.",
        parameters=(string("cursor"), _MATCH, optional(after("COUNT", integer("count")))),
        flags=_READ,
        categories=_KV,
        complexity="O(N), N = COUNT",
        usage="cursor [MATCH pattern] [COUNT n]",
        examples=(Example("KV.PREFIX.SCAN 0 COUNT 100", '1) "0"'),),
    ),
    CommandSpec(
        name="KV.PREFIX.WARM",
        summary="Reads a prefix into memory and checks its digests, so that a fetch waits for neither. With "
        "heads and head size its rows are made ready for attention, and the attend session means them.",
        group="prefix",
        reply="How many layers; with heads and head size those of another size are skipped and counted.",
        parameters=(
            key("namespace"),
            optional(
                block("shape", integer("heads"), integer("head-dim"), optional(string("attend-session")))
            ),
        ),
        flags=_READ,
        categories=_KV,
        keys=ONE,
        complexity="O(B), B = bytes",
        usage="ns_key [H D [attend_sid]]",
        examples=(Example("KV.PREFIX.WARM demo", "30"),),
    ),
)
