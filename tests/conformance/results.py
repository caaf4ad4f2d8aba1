"""Write docs/conformance.md from docs/results/conformance.json, the last complete run of the runner."""

from __future__ import annotations

import json
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


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
