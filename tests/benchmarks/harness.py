"""What every benchmark shares: interleaved rounds, medians, the machine's description, the results file.

A benchmark compares arms in one run: each round goes through all arms once, so that a busy moment of the
machine hits them alike. Outputs are compared before times are looked at. A result is a ratio against a
named peer; absolute figures are kept beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from pionkv.client.measured import Spread, machine, short

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Peer:
    name: str
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, name: str, spread: Spread) -> Peer:
        return cls(name, spread.median, spread.min, spread.max)


@dataclass
class Row:
    """One line of a results file; `ratio` says how many times better ours is than the peer."""

    work: str
    unit: str
    ours: Spread
    peer: Peer | None = None
    ratio: float | None = None
    target: float | None = None
    holds: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        out = asdict(self)
        extra = out.pop("extra")
        return {**out, **extra}


def rate_row(
    work: str,
    unit: str,
    amount: float,
    ours: list[float],
    peer: tuple[str, list[float]] | None = None,
    target: float | None = None,
    **extra: Any,
) -> Row:
    """A row of rates (amount per second) from the seconds of each round."""
    mine = Spread.of(ours).inverted(amount)
    if peer is None:
        return Row(work, unit, mine, target=target, extra=extra)
    theirs = Spread.of(peer[1]).inverted(amount)
    ratio = short(mine.median / theirs.median)
    holds = None if target is None else ratio >= target
    return Row(work, unit, mine, Peer.of(peer[0], theirs), ratio, target, holds, extra)


def interleaved(
    arms: Mapping[str, Callable[[], object]], rounds: int = 7, warm_up: int = 1, *, after_itself: bool = False
) -> dict[str, list[float]]:
    """Seconds of every arm in every round.

    Each round runs all arms once, in an order of its own, the same in every run: an arm finds the memory and
    the caches that the one before it left, so none may always follow the same other. With `after_itself` it
    is run once untimed just before, so that it finds what it has left itself.
    """
    for _ in range(warm_up):
        for arm in arms.values():
            arm()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order = Random(0)
    for _ in range(rounds):
        for name, arm in order.sample(list(arms.items()), len(arms)):
            if after_itself:
                arm()
            begin = time.perf_counter()
            arm()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def write_results(name: str, rows: list[Row], *, directory: Path = RESULTS, **more: Any) -> Path:
    """Writes `docs/results/<name>.json` and prints the rows as a table."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "command": " ".join(["python", *(_relative(a) for a in sys.argv)]),
        **more,
        "rows": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(as_markdown(rows))
    return path


def as_markdown(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| work | unit | ours | peer | ratio | target | holds |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        ours = f"{r.ours.median:g} ({r.ours.min:g}–{r.ours.max:g})"
        peer = f"{r.peer.name}: {r.peer.median:g} ({r.peer.min:g}–{r.peer.max:g})" if r.peer else ""
        cells = [r.work, r.unit, ours, peer, r.ratio, r.target, {True: "yes", False: "no", None: ""}[r.holds]]
        lines.append("| " + " | ".join("" if c is None else f"{c}" for c in cells) + " |")
    return "\n".join(lines)


def _relative(argument: str) -> str:
    try:
        return str(Path(argument).resolve().relative_to(ROOT))
    except ValueError:
        return Path(argument).name if os.sep in argument else argument


def commit() -> str:
    """The revision that is checked out."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
