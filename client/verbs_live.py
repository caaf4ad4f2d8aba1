"""The verbs of the command line that measure: bench and top."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import typer
from pionkv.kernels.formats import LayerSpec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from . import requests
from .command_line import AsJson, Shown, connected, connects, opened
from .deadline import Deadline
from .endpoint import Endpoint
from .lane import Lane
from .local import unix_twin

LAYERS, DIM = 16, 1024
ROW_BYTES = 2 * DIM
SECONDS = 120.0
RATES = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes", "keyspace_hits",
         "keyspace_misses", "total_error_replies")  # fmt: skip
LEVELS = ("connected_clients", "namespaces", "stored_bytes", "budget_bytes", "used_memory_rss", "evictions",
          "quarantined")  # fmt: skip


@connects
def bench(
    endpoint: Endpoint,
    megabytes: Annotated[int, typer.Option(help="Size of the prefix that is stored.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(help="Fetches of each kind.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Store a prefix, fetch it over every connection there is, drop it: megabytes a second, medians."""
    tokens = max(1, megabytes * 2**20 // (2 * LAYERS * ROW_BYTES))
    deadline = Deadline(SECONDS, SECONDS)
    name = f"bench:{secrets.token_hex(8)}"
    with opened(endpoint, deadline) as lane:
        lanes = {"tcp" if endpoint.unix_socket_path is None else "unix": lane}
        twin = None if endpoint.unix_socket_path else unix_twin(lane, endpoint, deadline, lane.traffic)
        if twin is not None:
            lanes["unix"] = twin[1]
        try:
            rows = list(_bench(lanes, deadline, name, tokens, rounds))
        finally:
            _ask(lane, ("KV.PREFIX.DROP", name), deadline)
    Shown(as_json).table(rows, ("work", "megabytes", "megabytes_per_second"))


def _bench(
    lanes: Mapping[str, Lane], deadline: Deadline, name: str, tokens: int, rounds: int
) -> Iterator[dict[str, Any]]:
    size = 2 * LAYERS * tokens * ROW_BYTES
    first = next(iter(lanes.values()))
    data = np.random.default_rng(1).standard_normal((tokens, DIM), np.float32).astype(np.float16)
    _ask(first, requests.register(name, LayerSpec("fp16", DIM)), deadline)
    begin = time.perf_counter()
    for sid in requests.sessions_of(name):
        for layer in range(LAYERS):
            _ask(first, requests.store(sid, layer, 0, tokens, data.data.cast("B"), "F16"), deadline)
    yield _row("store", size, [time.perf_counter() - begin])
    target = np.empty(tokens * ROW_BYTES, np.uint8)
    for kind, lane in lanes.items():
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            lane.send(requests.fetch_all(name, 0, tokens, "RAW"), deadline)
            lane.receive_rows(lambda index, length: target.data[:length], deadline)
            seconds.append(time.perf_counter() - begin)
        yield _row(f"fetch over {kind}", size, seconds)


def _row(work: str, size: int, seconds: list[float]) -> dict[str, Any]:
    median = sorted(seconds)[len(seconds) // 2]
    return {
        "work": work,
        "megabytes": round(size / 2**20, 1),
        "megabytes_per_second": round(size / 2**20 / median, 1),
    }


def _ask(lane: Lane, command: requests.Command, deadline: Deadline) -> object:
    lane.send(command, deadline)
    return lane.receive(deadline)


@connects
def top(
    endpoint: Endpoint,
    interval: Annotated[float, typer.Option(help="Seconds from one look to the next.", min=0.05)] = 1.0,
    count: Annotated[int, typer.Option(help="Looks; 0 for ever.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what the server is doing, again and again, until Ctrl-C."""
    with connected(endpoint) as client:
        looks = _looks(client, interval, count)
        try:
            if as_json:
                for look in looks:
                    typer.echo(json.dumps(look))
                return
            with Live(console=Console(), auto_refresh=False) as live:
                for look in looks:
                    live.update(_table(look), refresh=True)
        except KeyboardInterrupt:
            return


def _looks(client: Any, interval: float, count: int) -> Iterator[dict[str, Any]]:
    """The levels as they are, and how much the counters grow a second."""
    before, at = client.info("everything"), time.perf_counter()
    number = 0
    while not count or number < count:
        time.sleep(interval)
        now, later = client.info("everything"), time.perf_counter()
        rates = {f"{name}/s": round((now[name] - before[name]) / (later - at), 1) for name in RATES}
        yield {**{name: now.get(name, 0) for name in LEVELS}, **rates}
        before, at = now, later
        number += 1


def _table(look: Mapping[str, Any]) -> Table:
    table = Table("figure", "value")
    for name, value in look.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
    return table
