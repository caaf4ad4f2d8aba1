"""Rows that change while attention reads them, a piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pionkv.kernels import LayerSpec
from pionkv.server.attention.sources import PIECE_ROWS, find, read
from pionkv.storage import Schema, Stale, Store

ROWS = 2 * PIECE_ROWS + 1
HEAD = 16


def filled(store: Store, fill: int) -> None:
    schema = Schema.uniform(LayerSpec("fp16", HEAD))
    store.register(b"n", schema, schema)
    for sid in (b"n_pk", b"n_pv"):
        with store.begin_write(sid, 0, 0, ROWS, last=True) as write:
            while (segment := write.next_segment()) is not None:
                segment[:] = bytes([fill]) * len(segment)
            write.commit()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.drop_namespaces([b"n"]),
        lambda store: store.drop_sessions([b"n_pv"]),
        lambda store: store.truncate(b"n", PIECE_ROWS),
        lambda store: store.truncate(b"n", 0),
        lambda store: store.expire(b"n", 1.0),
        lambda store: filled(store, 2),
    ],
    ids=["dropped", "one side dropped", "cut", "emptied", "expired", "replaced"],
)
def test_rows_that_change_midway_are_stale_and_no_other_error(
    tmp_path: Path, change: Callable[[Store], object]
) -> None:
    async def main() -> None:
        with Store.open(tmp_path / "store") as store:
            filled(store, 1)
            source = find(store, b"n", 0)
            assert source is not None
            reading = asyncio.ensure_future(read(store, source, HEAD))
            await asyncio.sleep(0)
            assert not reading.done()
            change(store)
            with pytest.raises(Stale):
                await reading

    asyncio.run(main())
