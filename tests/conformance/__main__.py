"""Real clients that nobody here wrote against a real server: `python tests/conformance [--long] [peer …]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "benchmarks")]

import check_bare  # noqa: E402
import check_lmcache  # noqa: E402
import check_redis_clients  # noqa: E402
import check_stock  # noqa: E402
import check_tools  # noqa: E402
import results  # noqa: E402
from harness import commit, machine  # noqa: E402
from outcome import Check, Outcome, run  # noqa: E402
from server_process import ServerProcess  # noqa: E402

PEERS = {
    "bare": check_bare.checks,
    "stock": check_stock.checks,
    "redis": check_redis_clients.checks,
    "tools": check_tools.checks,
    "lmcache": check_lmcache.checks,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/conformance", description=__doc__)
    parser.add_argument(
        "peers", nargs="*", metavar="peer", help=f"{', '.join(PEERS)}; all of them if none is named"
    )
    parser.add_argument(
        "--long", action="store_true", help="20 questions of 50 tokens; installs LMCache with torch (5 GB)"
    )
    wishes = parser.parse_args()
    if unknown := set(wishes.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    outcomes = list(run(_checks(wishes.peers or list(PEERS), wishes.long)))
    complete = not wishes.peers
    record = _write(outcomes, complete=complete, long=wishes.long)
    if complete:
        results.PAGE.write_text(results.page(record), encoding="utf-8")
    print(results.table(record["rows"]))
    failed = sum(outcome.passed is False for outcome in outcomes)
    print(f"{sum(outcome.passed is True for outcome in outcomes)} passed, {failed} failed")
    return 1 if failed else 0


def _checks(names: list[str], long: bool) -> Iterator[Check]:
    """Each peer has a server of its own, so that what one leaves behind is nobody else's."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            server = ServerProcess(Path(folder) / "data")
            server.start()
            try:
                yield from PEERS[name](server, long=long)
            finally:
                server.close()


def _write(outcomes: list[Outcome], *, complete: bool, long: bool) -> dict[str, Any]:
    """Only a run of everything becomes the result that the documentation shows."""
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "long": long,
        "rows": [asdict(outcome) for outcome in outcomes],
    }
    path = results.DATA if complete else HERE.parents[1] / "build" / "conformance" / "latest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path.relative_to(HERE.parents[1])}", file=sys.stderr)
    return record


sys.exit(main())
