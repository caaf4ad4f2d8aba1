"""The long run: `make faults`, or `python tests/faults [--rounds N] [--cuts N] [--tier-rounds N] …`.

Kills, cuts, faults of a tier and of the network before it go on for so many rounds (with 0 of them, what an
earlier run has found stays); then the tests of the disk's and the system's refusals are run. The
figures go into docs/results/faults.json and the table of docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "benchmarks")]

import network  # noqa: E402
from faults_cutting import CutLoop  # noqa: E402
from faults_killing import KillLoop  # noqa: E402
from faults_network import NetworkLoop  # noqa: E402
from faults_page import PAGE, RESULT, with_table  # noqa: E402
from faults_tier import TierLoop  # noqa: E402
from harness import commit, machine  # noqa: E402
from server_process import ServerProcess  # noqa: E402

SHARE_ALWAYS = 5
"""One round of so many is under durability `always`."""


def kill(rounds: int, durability: str, seed: int) -> dict[str, object]:
    """Rounds of kills; their figures. Raises `Wrong`."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        loop = KillLoop(Path(folder), seed, "--durability", durability)
        loop.run(rounds)
    return {
        "durability": durability,
        "rounds": rounds,
        "killed": dict(loop.killed),
        "changes_acknowledged": loop.tally.counts["done"],
        "rows_checked": loop.tally.counts["seen"],
        "wrong_rows": len(loop.tally.wrong),
        "seconds": round(time.monotonic() - begun),
    }


def cut(cuts: int, seed: int) -> dict[str, object]:
    """Connections cut; the figures. Raises `WrongRows`."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "data")
        server.start()
        try:
            loop = CutLoop(server.port, seed)
            loop.run(cuts)
            status = server.stop()
        finally:
            server.close()
    counts = dict(loop.counts)
    return {
        "cuts": loop.proxy.cuts,
        "rows_checked": counts.pop("rows"),
        "commands": counts,
        "wrong_rows": 0,
        "exit_status": status,
        "seconds": round(time.monotonic() - begun),
    }


def tier(made: type[TierLoop], rounds: int, seed: int) -> dict[str, object]:
    """Faults of a tier; their figures. Raises `WrongRows`."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        loop = made(Path(folder), seed)
        loop.run(rounds)
    counts = dict(loop.counts)
    return {
        "commit": commit(),
        "rounds": rounds,
        "faults": {kind: counts[kind] for kind in loop.kinds if kind in counts},
        **{name: counts.get(name, 0) for name in ("published", "refused", "unread", "hits", "misses")},
        "rows_checked": counts["rows"],
        "wrong_rows": 0,
        "slowest_lookup_ms": round(loop.slowest * 1000),
        "seconds": round(time.monotonic() - begun),
    }


def refusals() -> dict[str, object]:
    """The tests of full disks, damaged files and the like; how many passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", str(HERE / "test_faults_disk.py")],
        cwd=ROOT,
        capture_output=True,
    )
    last = done.stdout.decode().strip().splitlines()[-1]
    return {"exit_status": done.returncode, "summary": last.strip("= ")}


def main() -> None:
    """Run everything and write it down; ends with an error when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=5_000)
    parser.add_argument("--tier-rounds", type=int, default=100)
    parser.add_argument("--network-rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    always = options.rounds // SHARE_ALWAYS
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    if options.rounds and options.cuts:
        result |= {
            "command": "make faults",
            "commit": commit(),
            "machine": machine(),
            "cuts": cut(options.cuts, options.seed),
            "kills": [
                kill(options.rounds - always, "everysec", options.seed),
                kill(always, "always", options.seed + 1),
            ],
            "refusals": refusals(),
        }
    if options.tier_rounds:
        result["tier"] = tier(TierLoop, options.tier_rounds, options.seed)
    if options.network_rounds and network.may_be_made():
        result["network"] = tier(NetworkLoop, options.network_rounds, options.seed)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(json.dumps(result, indent=2))
    sys.exit(int(result["refusals"]["exit_status"]))  # type: ignore[index]


if __name__ == "__main__":
    main()
