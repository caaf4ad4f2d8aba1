"""The sizes in the format pages are the code's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pionkv.kernels import FORMATS, FormatError, LayerSpec
from pionkv.kernels.kivi import BITS, KiviSpec

PAGES = Path(__file__).resolve().parents[2] / "docs" / "formats"
DIMS = (128, 192, 512, 1024)
LINE = re.compile(r"^\| (\w+)(?: (key group|value row))? \| (.+) \|$")


def lines() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Format, unit and cells of every line in a table whose columns are dims."""
    for page in sorted(PAGES.glob("*.md")):
        inside = False
        for text in page.read_text(encoding="utf-8").splitlines():
            if text.startswith("| format |") and "D = " in text:
                assert tuple(map(int, re.findall(r"D = (\d+)", text))) == DIMS
                inside = True
            elif not text.startswith("|"):
                inside = False
            elif inside and (match := LINE.match(text)):
                yield match[1], match[2] or "row", tuple(cell.strip() for cell in match[3].split("|"))


def expected(name: str, unit: str, dim: int) -> str:
    if unit != "row":
        kivi = KiviSpec(name, dim)
        size, plain = (
            (kivi.key_group_bytes, 64 * dim) if unit == "key group" else (kivi.value_row_bytes, 2 * dim)
        )
        return f"{size} ({plain / size:.2f})"
    fmt = FORMATS[name]
    spec = LayerSpec(name, dim, rope=64 if fmt.family == "rope" else 0, head_dim=0 if fmt.group else 64)
    try:
        spec.validate()
    except FormatError:
        return "–"
    return f"{spec.row_bytes} ({2 * dim / spec.row_bytes:.2f})"


def test_every_format_has_a_line() -> None:
    named = [(name, unit) for name, unit, _ in lines()]
    rows = [(name, "row") for name in FORMATS]
    groups = [(name, unit) for name in BITS for unit in ("key group", "value row")]
    assert sorted(named) == sorted(rows + groups)


@pytest.mark.parametrize(("name", "unit", "cells"), list(lines()))
def test_sizes(name: str, unit: str, cells: tuple[str, ...]) -> None:
    assert cells == tuple(expected(name, unit, dim) for dim in DIMS)
