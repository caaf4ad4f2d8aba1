"""Rows that say whose they are: namespace, side, layer, row and version, again and again in their values.

A row that is missing, foreign, of another place or half of another version is seen by looking at it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

DIM, WORDS = 64, 5
ROW_BYTES = DIM * 4
SIDES = (b"_pk", b"_pv")
Found = dict[tuple[int, int], tuple[int, int]]
"""(side, layer) -> rows and version; only layers that hold rows."""


class WrongRows(Exception):
    """Rows are not those that were stored."""


def connect(port: int = 0, *, unix: str | None = None) -> redis.Redis:
    """A client that repeats nothing by itself, by TCP or by a Unix socket."""
    retry = Retry(NoBackoff(), 0)
    return redis.Redis(
        "127.0.0.1",
        port,
        unix_socket_path=unix,
        socket_timeout=60,
        retry=retry,
        single_connection_client=True,
    )


def name_of(number: int) -> bytes:
    """The name of a namespace."""
    return b"ns%05d" % number


def pattern(number: int, side: int, layer: int, start: int, count: int, version: int) -> bytes:
    """Rows [start, start + count) of a layer, as fp32."""
    rows = np.empty((count, DIM), np.float32)
    for word, value in enumerate((number, side, layer, 0, version)):
        rows[:, word::WORDS] = value
    rows[:, 3::WORDS] = np.arange(start, start + count, dtype=np.float32)[:, None]
    return rows.tobytes()


def version_of(raw: bytes, number: int, side: int, layer: int, start: int, count: int) -> int:
    """The one version that all the rows are of. Raises `WrongRows`."""
    if len(raw) != count * ROW_BYTES:
        raise WrongRows(
            f"{len(raw)} bytes for {count} rows of namespace {number}, side {side}, layer {layer}"
        )
    version = int(np.frombuffer(raw, np.float32, 1, 4 * 4)[0])
    if raw != pattern(number, side, layer, start, count, version):
        rows = np.frombuffer(raw, np.float32).reshape(count, DIM)
        right = np.frombuffer(pattern(number, side, layer, start, count, version), np.float32)
        first = int(np.flatnonzero((rows != right.reshape(count, DIM)).any(axis=1))[0])
        raise WrongRows(
            f"namespace {number}, side {side}, layer {layer}: row {start + first} holds {rows[first][:WORDS]}"
        )
    return version


def shape_of(client: redis.Redis, number: int, side: int = 0) -> list[int]:
    """Rows of each layer that a side has now; none when it is not there."""
    try:
        info = client.execute_command("V.INFO", name_of(number) + SIDES[side])
    except redis.ResponseError:
        return []
    fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
    return [int(fields.get(b"layer_%d_tokens" % layer, 0)) for layer in range(int(fields[b"num_layers"]))]


def fetch(client: redis.Redis, number: int, side: int, layer: int, rows: int) -> bytes | None:
    """All rows of a layer, as they are stored."""
    sid = name_of(number) + SIDES[side]
    found: bytes | None = client.execute_command("V.FETCH", sid, layer, "RANGE", 0, rows, "FMT", "RAW")
    return found


def look(client: redis.Redis, number: int) -> tuple[bool, Found]:
    """Whether a namespace is a hit, and what it holds, layer by layer; nobody may change it meanwhile.

    Raises:
        WrongRows: Rows are not those that were stored.
    """
    hit = client.execute_command("KV.PREFIX.LOOKUP", name_of(number)) == b"HIT"
    found: Found = {}
    for side in (0, 1):
        for layer, rows in enumerate(shape_of(client, number, side)):
            raw = fetch(client, number, side, layer, rows) if rows else None
            if raw is not None:
                found[side, layer] = rows, version_of(raw, number, side, layer, 0, rows)
            elif rows:
                raise WrongRows(
                    f"namespace {number}, side {side}, layer {layer}: {rows} rows, and none are sent"
                )
    return hit, found


def store(
    client: redis.Redis, number: int, layer: int, span: Sequence[int], version: int, *options: bytes
) -> None:
    """Store rows [span[0], span[1]) of both sides of a layer."""
    start, end = span
    for side, suffix in enumerate(SIDES):
        rows = pattern(number, side, layer, start, end - start, version)
        words = (name_of(number) + suffix, layer, start, end - start, rows)
        client.execute_command("V.STOREBATCH", *words, *options)
