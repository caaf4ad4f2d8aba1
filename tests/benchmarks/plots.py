"""A chart of ratios as an SVG file: one bar a row, from "as fast as the peer" to what was measured.

The axis is logarithmic: twice as fast and half as fast are equally far from the line in the middle. Where a
row has a target a mark stands at it. The picture follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

BARS, FIGURES = 400, 64
"""Width of the bars, and of the column of figures."""
LETTER = 7.0
"""Width of a letter, no less than what fonts have on the average; the longest name makes the first column."""
LINE, THICK, TOP, BOTTOM = 24, 14, 52, 12

STYLE = """
svg { font: 12px system-ui, sans-serif; }
.ground { fill: #fff; } text { fill: #24292f; } .axis, .peer { fill: #57606a; }
.grid { stroke: #d8dee4; } .one { stroke: #57606a; } .target { stroke: #24292f; stroke-width: 2; }
.holds { fill: #1a7f8c; } .missed { fill: #c4622d; } .free { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; } text { fill: #e6edf3; } .axis, .peer { fill: #9198a1; }
.grid { stroke: #30363d; } .one { stroke: #9198a1; } .target { stroke: #e6edf3; }
.holds { fill: #39b3c2; } .missed { fill: #e0864f; } .free { fill: #6e7681; } }
"""
KINDS = {True: "holds", False: "missed", None: "free"}
LEGEND = (("holds", "target met"), ("missed", "target missed"), ("free", "no target"))


def ratio_chart(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The chart of the rows that have a ratio, in their order.

    Args:
        title: What a reader who does not see the picture is told.
        rows: As in a results file.
    """
    shown = [row for row in rows if row.get("ratio")]
    ratios = [row["ratio"] for row in shown] + [row["target"] for row in shown if row.get("target")]
    low = math.floor(min(0.0, *map(math.log2, ratios)))
    high = math.ceil(max(0.0, *map(math.log2, ratios)))
    names = 12 + math.ceil(LETTER * max(len(f"{row['work']} / {row['peer']['name']}") for row in shown))
    height = TOP + LINE * len(shown) + BOTTOM
    width = names + 12 + BARS + FIGURES

    def across(ratio: float) -> float:
        return names + 12 + BARS * (math.log2(ratio) - low) / (high - low)

    parts = [_grid(across, low, high, height - BOTTOM), _legend(width)]
    parts += [_bar(row, TOP + LINE * at, names, width, across) for at, row in enumerate(shown)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<rect class="ground" width="{width}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _grid(across: Callable[[float], float], low: int, high: int, bottom: int) -> str:
    lines = []
    for power in range(low, high + 1):
        x = across(2.0**power)
        name = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        kind = "grid" if power else "one"
        lines.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}"/>'
            f'<text class="axis" x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">{name}</text>'
        )
    return "\n".join(lines)


def _legend(width: int) -> str:
    parts, x = [], 12
    for kind, name in LEGEND:
        parts.append(
            f'<rect class="{kind}" x="{x}" y="9" width="12" height="12" rx="2"/>'
            f'<text class="axis" x="{x + 18}" y="19">{name}</text>'
        )
        x += 116
    parts.append(
        f'<line class="target" x1="{x + 4}" x2="{x + 4}" y1="7" y2="23"/>'
        f'<text class="axis" x="{x + 12}" y="19">target</text>'
        f'<text class="axis" x="{width - 12}" y="19" text-anchor="end">times the peer\'s rate</text>'
    )
    return "".join(parts)


def _bar(row: Mapping[str, Any], y: int, names: int, width: int, across: Callable[[float], float]) -> str:
    ratio, target = row["ratio"], row.get("target")
    start, end = sorted((across(1.0), across(ratio)))
    middle = y + LINE / 2 + 4
    parts = [
        f'<text x="{names}" y="{middle}" text-anchor="end">{escape(row["work"])}'
        f'<tspan class="peer"> / {escape(row["peer"]["name"])}</tspan></text>',
        f'<rect class="{KINDS[row.get("holds")]}" x="{start:.1f}" y="{y + (LINE - THICK) / 2}" '
        f'width="{max(end - start, 1):.1f}" height="{THICK}" rx="2"/>',
        f'<text x="{width - 12}" y="{middle}" text-anchor="end">{ratio:.3g}</text>',
    ]
    if target:
        x = across(target)
        parts.append(f'<line class="target" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{y + LINE - 2}"/>')
    return "".join(parts)
