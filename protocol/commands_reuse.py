"""What a client does to compute nothing twice: find the longest stored prefix of some tokens."""

from __future__ import annotations

from .spec import CommandSpec, Example, after, integer, key, optional, string, word

REUSE_COMMANDS = (
    CommandSpec(
        name="KV.PREFIX.CLAIM",
        summary="Asks for the right to compute a prefix: of several clients that want it only one does.",
        group="prefix",
        reply="CLAIMED: compute and publish it; the claim ends with the lease or the connection, asking "
        "again renews it, and a lease of 0 gives it back (OK). HELD: somebody else computes it, see LOOKUP "
        "WAIT. HIT: it can be restored.",
        parameters=(key("namespace"), integer("lease-milliseconds")),
        flags=("write",),
        categories=("kv", "write", "fast"),
        keys=(1, 1, 1),
        usage="ns_key lease_ms",
        examples=(Example("KV.PREFIX.CLAIM demo 5000", "CLAIMED"),),
    ),
    CommandSpec(
        name="KV.PREFIX.MAP",
        summary="Where a prefix's rows lie in page files, for a client on this machine that maps them.",
        group="prefix",
        reply="Generation, rows, an array of files (each path, device, inode, time of the last change in "
        "ns), and a bulk string, little-endian: for each layer and side layer u16, side u8 (0 K, 1 V), tag "
        "of the format u8, dim u32, rope u32, head u32, runs u32, and for each run its file u32, rows u32 "
        "and offset u64. Null when there are no rows that can be restored. The bytes were checked and stay "
        "as they are; a file may be removed at any time, and one that is open stays whole.",
        parameters=(key("namespace"),),
        flags=("readonly",),
        categories=("kv", "read", "slow"),
        keys=(1, 1, 1),
        complexity="O(L), L = layers; the first time O(B), B = bytes",
        usage="ns_key",
    ),
    CommandSpec(
        name="KV.PREFIX.MATCH",
        summary="Finds the longest stored prefix of some tokens, under the model that it was computed with.",
        group="prefix",
        reply="Namespace, number of the tokens that it holds from the first on, generation; null when none "
        "holds MIN of them. Prefixes are found that were registered with BLOCKS of one token and can be "
        "restored; with WHOLE only those all of whose tokens were given.",
        parameters=(
            string("tokens"),
            optional(after("MODEL", string("digest"))),
            optional(after("MIN", integer("tokens"))),
            optional(word("WHOLE")),
        ),
        flags=("readonly",),
        categories=("kv", "read", "slow"),
        complexity="O(N + log P), N = tokens, P = stored prefixes",
        usage="tokens, 32 bits each, little-endian",
    ),
    CommandSpec(
        name="KV.PREFIX.MODELS",
        summary="The models that prefixes with tokens were registered under.",
        group="prefix",
        reply="An array: the digest of each, and how many prefixes there are of it.",
        flags=("readonly",),
        categories=("kv", "read", "slow"),
        complexity="O(M), M = models",
    ),
)
