"""Rows that say in their values whose they are, and the commands that store and read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

DIM = 32
ROW_BYTES = DIM * 2
LAYERS = 2
SIDES = ("k", "v")
SCHEMA = ("KV", DIM, "fp16", "LAYERS", LAYERS)


def rows(owner: int, layer: int, side: str, start: int, end: int) -> bytes:
    """fp16 rows [start, end); each holds its owner, layer, side and number."""
    made = np.zeros((end - start, DIM), np.float16)
    made[:, 0], made[:, 1], made[:, 2] = owner, layer, SIDES.index(side)
    made[:, 3] = np.arange(start, end)
    return made.tobytes()


def code(reply: Any) -> str:
    """That of an error reply."""
    return str(reply.code)


def begin(wire: Any, *options: Any, name: str = "n") -> bytes:
    """Begin a transaction on a prefix."""
    txn = wire.command("KV.PREFIX.BEGIN", name, *SCHEMA, *options)
    assert isinstance(txn, bytes), txn
    return txn


def put(
    wire: Any, txn: bytes, layer: int, start: int, end: int, owner: int = 1, side: str = "k", name: str = "n"
) -> Any:
    """Store rows of one layer and side into a transaction; the reply."""
    blob = rows(owner, layer, side, start, end)
    return wire.command(
        "V.STOREBATCH", f"{name}_p{side}", layer, start, end - start, blob, "FMT", "F16", "TXN", txn
    )


def prepare(wire: Any, txn: bytes, name: str, owner: int, start: int, end: int) -> None:
    """Store rows of every layer and side into a transaction."""
    for layer in range(LAYERS):
        for side in SIDES:
            stored = put(wire, txn, layer, start, end, owner, side, name)
            assert stored == "OK", stored


def publish(wire: Any, name: str, owner: int, start: int, end: int, *options: Any) -> list[Any]:
    """Rows [start, end) of a prefix in one transaction; its receipt."""
    txn = begin(wire, *options, name=name)
    prepare(wire, txn, name, owner, start, end)
    receipt = wire.command("KV.PREFIX.PUBLISH", txn)
    assert isinstance(receipt, list), receipt
    return receipt


def whole(wire: Any, name: str, tokens: int, *options: Any) -> Any:
    """The rows of every layer and side, in the order k0 v0 k1 v1."""
    return wire.command("V.FETCHALL", f"{name}_pk", f"{name}_pv", 0, tokens, "FMT", "RAW", *options)


def expected(*runs: tuple[int, int, int]) -> list[bytes]:
    """What `whole` answers when each run (owner, start, end) was stored."""
    return [
        b"".join(rows(owner, layer, side, start, end) for owner, start, end in runs)
        for layer in range(LAYERS)
        for side in SIDES
    ]


def lookup(wire: Any, *options: Any, name: str = "n") -> Any:
    """What a lookup of a prefix answers."""
    return wire.command("KV.PREFIX.LOOKUP", name, *options)


def baseline(server: Any) -> Any:
    """Everything a transaction could leave behind: the catalog's numbers, memory held, files."""

    def look(app: Any) -> Any:
        store = app.service.store
        engine = store._engine
        files = sorted(path.name for path in engine.pages.directory.iterdir())
        info = replace(store.info(), catalog_bytes=0)
        return info, engine.reserved, dict(engine.writing), len(engine.pages._pages), files

    return server.call(look)
