"""Pages and tables made from the results: `python tests/benchmarks/tables.py`.

The README's table of formats, and docs/benchmarks.md: every row of every benchmark that compares arms.
"""

import json
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT
from pionkv.kernels import LAYER_FORMATS, LayerSpec
from pionkv.kernels.formats import HEAD
from plots import ratio_chart

PAGE = ROOT / "docs" / "benchmarks.md"
COMPARISONS = {
    "io": "Moving bytes, beside redis-server and a bare socket",
    "io_16": "The same on a machine of 16 cores",
    "load": "Cost as work grows",
    "workers": "One worker and two",
    "connections": "A large prefix over one connection and over several",
    "receive": "Rows received into memory that is kept, into new memory, and by redis-py",
    "client": "Time to the first token",
    "tier": "A tier of several servers, beside redis-py",
    "conversation": "What a long conversation writes",
    "attend": "Attention at the server, or rows fetched for it",
    "attend_gpu": "The same on a GPU",
    "storage": "What storage costs besides the bytes",
    "parser": "Parsing requests and replies",
    "kernels_cpu": "Packing and unpacking on the CPU",
    "kernels_gpu": "Packing and unpacking on a GPU",
}
CHARTS = ("io", "load")
"""Comparisons whose ratios are drawn, too."""
IMAGES = PAGE.parent / "images"
INTRODUCTION = """# Benchmarks

Made from [results](results) by `make docs`. Each table is one run: arms took turns, outputs were compared
before any time was looked at, figures are medians with minimum and maximum. *ratio* is ours divided by the
peer's, as rates: above 1 ours is faster. A target that is missed stays in its table. What limits the hot
paths is said in [performance.md](performance.md). `make bench` runs all of them; absolute figures are those
of one shared machine, ratios travel better.
"""

BEGIN, END = "<!-- formats: made by `make docs` -->\n", "<!-- end of formats -->\n"
DIM, HEAD_DIM = 1024, 128


def formats_table() -> str:
    """Bytes of a row of 1,024 elements, the ratio to fp16, and what the format cost a real model."""
    measured = {row["work"]: row for row in json.loads((RESULTS / "quality.json").read_text())["rows"]}
    lines = [
        "| format | bytes, D = 1024 | to fp16 | K / V error | KL | top token | same answer | what it is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    listed = {name: form for name, form in LAYER_FORMATS.items() if form.tokens == 1}
    for name, form in listed.items():
        rope = 64 if "rope" in name else 0
        spec = LayerSpec(name, DIM, rope=rope, head_dim=HEAD_DIM if form.group == HEAD else 0)
        cells = [f"`{name}`", str(spec.row_bytes), f"{2 * DIM / spec.row_bytes:.2f}"]
        row = measured.get(name)
        if row is None and form.quantized:
            cells += ["–"] * 4
        elif row is None:
            cells += ["exact", "0", "100 %", "all"]
        else:
            cells += [
                f"{row['k_error_percent']:.2g} / {row['v_error_percent']:.2g} %",
                f"{row['kl']:.2g}",
                f"{100 * row['top1_agreement']:.1f} %",
                f"{row['identical']} of {row['questions']}",
            ]
        lines.append("| " + " | ".join([*cells, form.summary]) + " |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The README with a fresh table between its marks."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + formats_table() + END + rest.split(END)[1]


def results_page() -> str:
    """docs/benchmarks.md."""
    parts = [INTRODUCTION]
    for name, title in COMPARISONS.items():
        if (record := _record(name)) is not None:
            chart = f"![Ratios of the table below]({IMAGES.name}/{name}.svg)\n\n" if name in CHARTS else ""
            parts.append(f"## {title}\n\n{chart}{_section(name, record)}")
    return "\n".join(parts)


def charts() -> dict[Path, str]:
    """The pictures of that page."""
    records = {name: record for name in CHARTS if (record := _record(name)) is not None}
    return {
        IMAGES / f"{name}.svg": ratio_chart(COMPARISONS[name], record["rows"])
        for name, record in records.items()
    }


def _record(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _section(name: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    where = record.get("gpu") or f"{machine['cores']} cores of {machine['processor']}"
    load = machine.get("load_before", [None])[0]
    busy = "" if load is None else f", load {load:g} before"
    lines = [
        f"[{name}.json](results/{name}.json): `{record['command']}`, revision {record['commit']}, "
        f"{record['when'][:10]}, {where}{busy}.",
        "",
        "| work | unit | ours | peer | ratio | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, record["rows"])]) + "\n"


def _line(row: dict[str, Any]) -> str:
    peer = row.get("peer")
    ratio, target = row.get("ratio"), row.get("target")
    cells = [
        row["work"],
        row["unit"],
        _spread(row["ours"]),
        "" if peer is None else f"{peer['name']}: {_spread(peer)}",
        "" if ratio is None else f"{ratio:.3g}",
        "" if target is None else f"{target:.3g}",
        {True: "holds", False: "missed", None: ""}[row.get("holds")],
    ]
    return "| " + " | ".join(cells) + " |"


def _spread(values: dict[str, float]) -> str:
    return f"{values['median']:.4g} ({values['min']:.3g}–{values['max']:.3g})"


if __name__ == "__main__":
    for path, text in {PAGE: results_page(), **charts()}.items():
        path.write_text(text, encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
