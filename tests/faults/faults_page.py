"""The table of docs/faults.md, made from docs/results/faults.json: `python tests/faults/faults_page.py`."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT, PAGE = ROOT / "docs/results/faults.json", ROOT / "docs/faults.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def with_table(text: str) -> str:
    """The page's text with the table of the result that is there."""
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return head + "\n".join([BEGIN, *_table(), END]) + tail


def _table() -> list[str]:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = [
        "| | rounds | killed | changes acknowledged | rows checked | wrong rows |",
        "|---|---|---|---|---|---|",
    ]
    for found in result["kills"]:
        killed = ", ".join(f"{name} {count}" for name, count in sorted(found["killed"].items()))
        figures = f"{found['changes_acknowledged']:,} | {found['rows_checked']:,} | {found['wrong_rows']}"
        lines.append(f"| kill -9, `{found['durability']}` | {found['rounds']} | {killed} | {figures} |")
    cuts = result["cuts"]
    commands = ", ".join(f"{name} {count}" for name, count in sorted(cuts["commands"].items()))
    lines.append(
        f"| cuts | {cuts['cuts']:,} | {commands} | | {cuts['rows_checked']:,} | {cuts['wrong_rows']} |"
    )
    for name in ("tier", "network"):
        if (found := result.get(name)) is None:
            continue
        broken = ", ".join(f"{kind} {count}" for kind, count in found["faults"].items())
        figures = f"{found['published']:,} | {found['rows_checked']:,} | {found['wrong_rows']}"
        lines.append(f"| {name} | {found['rounds']} | {broken} | {figures} |")
    return lines


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
