"""KV.PREFIX.MATCH on the wire."""

from __future__ import annotations

import numpy as np

DIM = 32


def u32(ids):
    return np.asarray(ids, "<u4").tobytes()


def store(wire, namespace, ids, *options):
    table = np.asarray(ids, "<u8").tobytes()
    command = ("KV.PREFIX.REGISTER", namespace, DIM, "fp16", "BLOCKS", 1, len(ids), table, *options)
    assert wire.command(*command) == "OK"
    for side in "kv":
        rows = bytes(4 * DIM * len(ids))
        assert wire.command("V.STOREBATCH", f"{namespace}_p{side}", 0, 0, len(ids), rows) == "OK"


def found(wire, ids, *options):
    reply = wire.command("KV.PREFIX.MATCH", u32(ids), *options)
    return None if reply is None else (bytes(reply[0]), reply[1])


def test_the_longest_match_of_the_model(either) -> None:
    """R33: by token ids."""
    wire, ids = either, list(range(200))
    assert found(wire, ids) is None
    store(wire, "a", ids[:100], "MODEL", "m1", "PREFILL_MS", 100)
    store(wire, "b", [*ids[:130], 7, 7], "MODEL", "m1", "PREFILL_MS", 132)
    assert found(wire, ids) is None
    assert found(wire, ids, "MODEL", "m2") is None
    assert found(wire, ids, "MODEL", "m1") == (b"b", 130)
    assert found(wire, ids, "model", "m1", "min", 130) == (b"b", 130)
    assert found(wire, ids, "MODEL", "m1", "MIN", 131) is None
    assert found(wire, ids, "MODEL", "m1", "WHOLE") == (b"a", 100)
    assert found(wire, [], "MODEL", "m1") is None
    assert wire.command("KV.PREFIX.DROP", "b") == 1
    assert found(wire, ids, "MODEL", "m1") == (b"a", 100)


def test_the_generation_is_that_of_the_rows(wire) -> None:
    store(wire, "a", [1, 2, 3])
    first = wire.command("KV.PREFIX.MATCH", u32([1, 2, 3]))[2]
    wire.command("V.STOREBATCH", "a_pk", 0, 0, 1, bytes(4 * DIM))
    assert wire.command("KV.PREFIX.MATCH", u32([1, 2, 3]))[2] > first > 0


def test_a_part_of_a_prefix_saves_a_part_of_its_prefill(wire) -> None:
    store(wire, "a", list(range(100)), "PREFILL_MS", 1000)
    assert found(wire, list(range(40))) == (b"a", 40)
    wire.command("V.FETCHALL", "a_pk", "a_pv", 0, 40)
    stats = wire.command("PION.STATS")
    fields = dict(zip(stats[::2], stats[1::2], strict=True)) if isinstance(stats, list) else stats
    shown = {str(k, "ascii") if isinstance(k, bytes) else k: v for k, v in fields.items()}
    assert (shown["kvprefix_tokens_served"], shown["kvprefix_prefill_us_saved"]) == (40, 400_000)


def test_the_models_are_counted(either) -> None:
    wire = either
    assert wire.command("KV.PREFIX.MODELS") == []
    store(wire, "a", [1, 2, 3], "MODEL", "m1")
    store(wire, "b", [1, 2, 4], "MODEL", "m1")
    store(wire, "c", [1])
    store(wire, "a", [1, 2, 5], "MODEL", "m2")
    assert wire.command("KV.PREFIX.MODELS") == [b"", 1, b"m1", 1, b"m2", 1]
    wire.command("KV.PREFIX.DROP", "a", "b", "c")
    assert wire.command("KV.PREFIX.MODELS") == []
