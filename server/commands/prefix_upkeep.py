"""KV.PREFIX.SAVE, WARM: large work on the disk, beside the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import SessionView, Store, UnknownNamespace, UnknownSession

from ..arguments import Argument, Cursor, blob, integer
from ..attention.sources import SIDES, check_rows
from ..attention.warming import give_name, make_ready
from ..clients import Client
from ..dispatch import Handler, Slow
from .prefix import checked_name, commit

SAVE, WARM = "KV.PREFIX.SAVE", "KV.PREFIX.WARM"
HEADS, HEAD_DIM = 256, 512
READ_BYTES = 4 << 20
BAD_PATH = CommandError(
    "ERR",
    f"{SAVE}: path must be relative to the data directory (no leading '/', no '..', no control bytes)",
)
BAD_SHAPE = CommandError("ERR", f"invalid H/D (1..{HEADS} / 1..{HEAD_DIM})")
NOT_REGISTERED = CommandError("ERR", f"{WARM} namespace not registered (call KV.PREFIX.REGISTER first)")


def save(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.SAVE [path]."""
    if len(args) == 1:
        return commit(client, args)
    cursor = Cursor(args, 1)
    name = _path(blob(cursor.take()))
    cursor.end(SAVE)
    return _save(client.service.store, name)


def _path(given: bytes) -> str:
    try:
        text = given.decode()
    except UnicodeDecodeError:
        raise BAD_PATH.again() from None
    path = PurePosixPath(text)
    parts = path.parts
    hidden = any(part.startswith((".", "~")) for part in parts)
    if not parts or path.is_absolute() or hidden or not text.isprintable():
        raise BAD_PATH.again()
    return str(path)


async def _save(store: Store, name: str) -> bytes:
    copy = store.begin_save(name)
    try:
        while not await asyncio.to_thread(copy.link):
            copy.renew()
        await asyncio.to_thread(copy.copy)
    finally:
        copy.close()
    return reply.OK


def warm(client: Client, args: Sequence[Argument]) -> Slow:
    """KV.PREFIX.WARM ns [H D [attend_sid]]."""
    namespace, shape, name = checked_name(client, args[1]), None, None
    cursor = Cursor(args, 2)
    if cursor.left >= 2:
        shape = integer(cursor.take()), integer(cursor.take())
        if not (1 <= shape[0] <= HEADS and 1 <= shape[1] <= HEAD_DIM):
            raise BAD_SHAPE.again()
        if cursor:
            name = checked_name(client, client.user.tag + blob(cursor.take()))
    cursor.end(WARM)
    return _warm(client, namespace, shape, name)


async def _warm(client: Client, namespace: bytes, shape: tuple[int, int] | None, name: bytes | None) -> bytes:
    store = client.service.store
    try:
        files = store.page_files(namespace)
        sides = [store.session(namespace + suffix) for suffix in SIDES]
    except (UnknownNamespace, UnknownSession):
        raise NOT_REGISTERED.again() from None
    await asyncio.to_thread(_read_ahead, files)
    layers = [layer for layer in range(min(len(side.rows) for side in sides)) if _stored(sides, layer)]
    width = None if shape is None else {shape[0] * shape[1]}
    fitting = [layer for layer in layers if width is None or _width(sides, layer) == width]
    for layer in fitting:
        for side in sides:
            await check_rows(store, side.sid, layer, side.rows[layer])
    skipped = len(layers) - len(fitting)
    if shape is not None and fitting:
        known_as = namespace if name is None else give_name(client.service, client.user, namespace, name)
        await make_ready(client.service, known_as, fitting, shape[1])
    return reply.simple(f"{len(fitting)} skipped_dim={skipped}" if skipped else f"{len(fitting)}")


def _stored(sides: Iterable[SessionView], layer: int) -> bool:
    return all(side.rows[layer] for side in sides)


def _width(sides: Iterable[SessionView], layer: int) -> set[int]:
    return {side.schema.layer(layer).dim for side in sides}


def _read_ahead(files: Iterable[Path]) -> None:
    """Read files from the disk into the system's memory; one that is gone is left out."""
    room = bytearray(READ_BYTES)
    for path in files:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            position = 0
            while taken := os.preadv(file, [room], position):
                position += taken
        finally:
            os.close(file)


HANDLERS: dict[str, Handler] = {SAVE: save, WARM: warm}
