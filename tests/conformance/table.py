"""Write docs/commands-compared.md from `compared.toml` and the command table."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from pionkv.protocol.table import COMMANDS

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "commands-compared.md"
DATA = Path(__file__).with_name("compared.toml")
OURS = re.compile(r"(V|KV\.PREFIX|SSM\.PREFIX|PION|ATTEND)\.")

HEAD = """# Commands, compared with the original

Made by `python tests/conformance/table.py`; a test says when it is out of date. What the published client
sends to the original server is answered here in the same form. Where the answer differs, it is on purpose.

| command | form | the original | pionkv | tested by |
|---|---|---|---|---|
"""
REDIS = """
## Commands of Redis

Answered as Redis 7 does, as far as its tools and the clients above use them.

| group | commands | tested by |
|---|---|---|
"""


class Unfinished(Exception):
    """The page would leave something out, or name something that is not there."""


def page() -> str:
    """The page.

    Raises:
        Unfinished: A command has no row, a row no command, or a test does not exist.
    """
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    rows, groups = data["row"], data["groups"]
    described = {row["command"] for row in rows if "absent" not in row}
    ours = {name for name in COMMANDS if OURS.match(name)}
    if described != ours:
        raise Unfinished(
            f"without a row: {sorted(ours - described)}; not a command: {sorted(described - ours)}"
        )
    return HEAD + "".join(map(_row, rows)) + REDIS + "".join(_groups(groups))


def _row(row: dict[str, Any]) -> str:
    tested = _tests(row.get("tested", []))
    answer = row.get("absent") or row["ours"]
    cells = (
        f"`{row['command']}`",
        f"`{row['form']}`" if row["form"] else "",
        row["original"],
        answer,
        tested,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _groups(tests: dict[str, list[str]]) -> list[str]:
    names = defaultdict(list)
    for name, spec in COMMANDS.items():
        if not OURS.match(name) and not spec.container:
            names[spec.group].append(f"`{name.replace('|', ' ')}`")
    if missing := set(names) - set(tests):
        raise Unfinished(f"groups without tests: {sorted(missing)}")
    return [
        f"| {group} | {', '.join(found)} | {_tests(tests[group])} |\n"
        for group, found in sorted(names.items())
    ]


def _tests(references: list[str]) -> str:
    for reference in references:
        file, _, name = reference.partition("::")
        path = TESTS / file
        if not path.is_file() or (name and f"def {name}(" not in path.read_text(encoding="utf-8")):
            raise Unfinished(f"no such test: {reference}")
    return "<br>".join(f"{Path(reference).name}" for reference in references)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.relative_to(TESTS.parent)}")
