"""The README's table of formats, from the registry and the results: `python tests/benchmarks/tables.py`."""

import json

from harness import RESULTS, ROOT
from pionkv.kernels import FORMATS, LayerSpec
from pionkv.kernels.formats import HEAD

BEGIN, END = "<!-- formats: made by `make docs` -->\n", "<!-- end of formats -->\n"
DIM, HEAD_DIM = 1024, 128


def formats_table() -> str:
    """Bytes of a row of 1,024 elements, the ratio to fp16, and what the format cost a real model."""
    measured = {row["work"]: row for row in json.loads((RESULTS / "quality.json").read_text())["rows"]}
    lines = [
        "| format | bytes, D = 1024 | to fp16 | K / V error | KL | top token | same answer | what it is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, form in FORMATS.items():
        rope = 64 if "rope" in name else 0
        spec = LayerSpec(name, DIM, rope=rope, head_dim=HEAD_DIM if form.group == HEAD else 0)
        cells = [f"`{name}`", str(spec.row_bytes), f"{2 * DIM / spec.row_bytes:.2f}"]
        row = measured.get(name)
        if row is None:
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


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
