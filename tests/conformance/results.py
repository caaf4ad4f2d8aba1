"""Write docs/conformance.md from docs/results/conformance.json, the last complete run of the runner.

    python tests/conformance/results.py [record ...]

A record is what a run of single peers left in build/conformance/latest.json: its rows take the places of
those they repeat, and say which revision they are of.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "conformance.md"
DATA = DOCS / "results" / "conformance.json"
LONGEST = 300
WORDS = {True: "yes", False: "**no**", None: "not here"}

HEAD = """# Clients nobody here wrote

Made by `make conformance` ({command}) on {when}, revision {commit}, {machine}.
Each client runs unmodified, in an environment of its own, against a server of its own. *Not here* names what
could not be had on that machine.

{passed} checks hold, {failed} do not, {missing} could not be run.

"""


def page(record: dict[str, Any]) -> str:
    """The page of a complete run."""
    rows = record["rows"]
    count = {word: sum(row["passed"] is word for row in rows) for word in WORDS}
    machine = record["machine"]
    described = (
        f"{machine['system']}, {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}, load {machine['load_before'][0]} before"
    )
    head = HEAD.format(
        command="`python tests/conformance --long`" if record["long"] else "`python tests/conformance`",
        when=record["when"].partition("T")[0],
        commit=record["commit"],
        machine=described,
        passed=count[True],
        failed=count[False],
        missing=count[None],
    )
    return head + table(rows) + "\n"


def table(rows: Iterable[dict[str, Any]]) -> str:
    """A line for each check."""
    lines = ["| peer | check | holds | detail |", "|---|---|---|---|"]
    for row in rows:
        detail = " ".join(row["detail"].split()).replace("|", "\\|")
        lines.append(f"| {row['peer']} | {row['check']} | {WORDS[row['passed']]} | {detail[:LONGEST]} |")
    return "\n".join(lines)


def with_rows_of(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A record with the rows of a run of single peers."""
    mark = f"run by itself, revision {other['commit']}"
    added = [row | {"detail": f"{row['detail']} ({mark})"} for row in other["rows"]]
    known = {(row["peer"], row["check"]): row for row in (*record["rows"], *added)}
    return record | {"rows": list(known.values())}


if __name__ == "__main__":
    found = json.loads(DATA.read_text(encoding="utf-8"))
    for name in sys.argv[1:]:
        found = with_rows_of(found, json.loads(Path(name).read_text(encoding="utf-8")))
    DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
