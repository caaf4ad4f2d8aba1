"""What the queue of the write-behind has missed is found by the sweep, however much has gone by."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pionkv.server.tier import publisher
from pionkv.server.tier.context import Context, Mark
from pionkv.server.tier.guard import Guard
from pionkv.server.tier.index import Index
from pionkv.storage import Store


class Stopped:
    """A tier that answers nothing."""

    address = "stopped"

    def shard_of(self, name: bytes) -> str:
        return "stopped"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("nothing is to be asked here")


def stored(store: Store, name: bytes) -> int:
    """A prefix that can be restored; its generation."""
    store.put_state(name, 1, b"state")
    return store.namespace(name).generation


def test_what_was_written_meanwhile_hides_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "QUEUED", 2)
    monkeypatch.setattr(publisher.Publisher, "_next", lambda self: None)

    async def main() -> list[bytes]:
        with Store.open(tmp_path / "store") as store:
            guard = Guard(Stopped(), 1.0, Counter())  # type: ignore[arg-type]
            context = Context(store, guard, Counter(), "here")
            made = publisher.Publisher(context, Index(guard, Counter()), 1 << 30, lambda name: None)
            for name in (b"a", b"b"):
                generation = stored(store, name)
                made.sweep()
                note = Mark(1, bytes(16)).encode()
                assert store.set_mark(name, generation, note, expires=0.0, manifest=None)
            stored(store, b"late")
            for _ in range(3):
                made.sweep()
            waiting = [name for name in (b"a", b"b", b"late") if made.is_pending(name)]
            made.close()
            return waiting

    assert asyncio.run(main()) == [b"late"]
