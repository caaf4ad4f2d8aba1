"""The rest of the store's own commands: snapshots, exports, state blobs, block tables, the receipt."""

from __future__ import annotations

from .spec import CommandSpec, Example, after, integer, key, optional, string, word

WRITE, READ = ("write", "denyoom"), ("readonly",)
ONE = (1, 1, 1)

_SNAPSHOTS = (
    CommandSpec(
        name="V.COMMIT",
        summary="Forgets a snapshot.",
        group="vstore",
        reply="1 when there was one, else 0.",
        parameters=(key("session"), integer("snapshot")),
        flags=("write",),
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="session_id snap_id",
        examples=(Example("V.COMMIT demo 1", "(integer) 1"),),
    ),
    CommandSpec(
        name="V.RESTORE",
        summary="Cuts the layers of a session back to the lengths they had at a snapshot.",
        group="vstore",
        reply="OK. Layers that are shorter stay as they are; the snapshot can be used again.",
        parameters=(key("session"), integer("snapshot")),
        flags=("write",),
        categories=("kv", "write", "slow"),
        keys=ONE,
        complexity="O(L), L = layers",
        usage="session_id snap_id",
        examples=(Example("V.RESTORE demo 1", "OK"),),
    ),
    CommandSpec(
        name="V.SNAPSHOT",
        summary="Records the lengths of a session's layers.",
        group="vstore",
        reply="The number of the snapshot, an integer.",
        parameters=(key("session"),),
        flags=("write",),
        categories=("kv", "write", "fast"),
        keys=ONE,
        complexity="O(L), L = layers",
        usage="session_id",
        examples=(Example("V.SNAPSHOT demo", "(integer) 1"),),
    ),
    CommandSpec(
        name="V.EXPORT",
        summary="Writes rows of both sides to a safetensors file, for a client on the same machine.",
        group="vstore",
        reply="The path of the file: tensors k.0 v.0 k.1 v.1 …, F16, shape [1, heads, rows, head size].",
        parameters=(
            key("k-session"),
            key("v-session"),
            integer("start"),
            integer("end"),
            integer("num-layers"),
            integer("n-kv-heads"),
            integer("head-dim"),
        ),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=(1, 2, 1),
        complexity="O(B), B = bytes exported",
        usage="k_session v_session start end num_layers n_kv_heads head_dim",
    ),
)

_PREFIX = (
    CommandSpec(
        name="KV.PREFIX.BLOCKS",
        summary="The block hashes that a prefix was registered with.",
        group="prefix",
        reply="A bulk string: u32 block size, u32 count, that many u64 hashes, little-endian; or UNKNOWN.",
        parameters=(key("namespace"),),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(N), N = hashes",
        usage="ns_key",
    ),
    CommandSpec(
        name="KV.PREFIX.MEMBERSHIP",
        summary="Which of some block hashes are among those of a prefix.",
        group="prefix",
        reply="A bitmap, lowest bit first; UNKNOWN for a prefix without block hashes.",
        parameters=(key("namespace"), integer("count"), string("hashes")),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(N log N), N = hashes",
        usage="ns_key hash_count hash_blob",
    ),
    CommandSpec(
        name="KV.PREFIX.OWNER",
        summary="Which worker last published or changed a prefix; every worker serves it.",
        group="prefix",
        reply="The worker's number, and the schema's digest when layers differ; -1 without such a prefix.",
        parameters=(key("namespace"),),
        flags=("readonly", "fast"),
        categories=("kv", "read", "fast"),
        keys=ONE,
        usage="ns_key",
        examples=(Example("KV.PREFIX.OWNER demo", "0"),),
    ),
)

_SSM = (
    CommandSpec(
        name="SSM.PREFIX.DROP",
        summary="Removes one state blob of a namespace, or all.",
        group="state",
        reply="OK, whether there were any or not.",
        parameters=(key("namespace"), optional(integer("layer"))),
        flags=("write",),
        categories=("kv", "write", "fast"),
        keys=ONE,
        usage="session_id [layer_id]",
        examples=(Example("SSM.PREFIX.DROP demo", "OK"),),
    ),
    CommandSpec(
        name="SSM.PREFIX.FETCH",
        summary="A state blob of a namespace.",
        group="state",
        reply="The bytes as they were stored, or null.",
        parameters=(key("namespace"), integer("layer")),
        flags=READ,
        categories=("kv", "read", "slow"),
        keys=ONE,
        complexity="O(B), B = bytes of the blob",
        usage="session_id layer_id",
        examples=(Example("SSM.PREFIX.FETCH demo 0", '"state"'),),
    ),
    CommandSpec(
        name="SSM.PREFIX.STORE",
        summary="Keeps an opaque state of a recurrent layer with a namespace, in the place of an older one.",
        group="state",
        reply="OK. TXN: nobody sees it before the transaction is published; an error ends the transaction.",
        parameters=(
            key("namespace"),
            integer("layer"),
            string("blob"),
            optional(after("TXN", string("txn"))),
        ),
        flags=WRITE,
        categories=("kv", "write", "slow"),
        keys=ONE,
        complexity="O(B), B = bytes of the blob",
        usage="session_id layer_id state_blob",
        examples=(Example("SSM.PREFIX.STORE demo 0 state", "OK"),),
    ),
)

_RECEIPT = (
    CommandSpec(
        name="PION.STATS",
        summary="The receipt: what stored prefixes have saved since the server started.",
        group="server",
        reply="A map of 16 fields (in RESP2 a flat array of 32); OK for RESET.",
        parameters=(optional(word("RESET")),),
        flags=("loading", "stale", "fast"),
        categories=("kv", "read", "fast"),
        examples=(Example("PION.STATS RESET", "OK"),),
    ),
)

STATE_COMMANDS = (*_SNAPSHOTS, *_PREFIX, *_SSM, *_RECEIPT)
