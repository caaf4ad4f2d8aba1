"""Why turbo4, turbo3 and turbo2 rotate: errors of each way to code a block of 32 in the same bytes.

Ours is the format; the peer is plain absmax, as the original server codes. Reconstruction is measured for
keys and for values, attention for both together. Spreads are over seeds, or over the layers of the model.

    python tests/benchmarks/bench_turbo_choice.py
"""

from __future__ import annotations

from block_coders import coders
from harness import Peer, Row, Spread, write_results
from kv_families import Sample, attention_error, drawn, of_model, relative_error

SEEDS = range(5)
DRAWN = ("gaussian", "outliers", "heavy tail")


def samples() -> dict[str, list[Sample]]:
    """The four kinds of input."""
    families = {kind: [drawn(kind, seed) for seed in SEEDS] for kind in DRAWN}
    return {**families, "SmolLM2": of_model()}


def errors(family: list[Sample], bits: int) -> dict[str, dict[str, list[float]]]:
    """Per coder the errors of keys, values and attention, one for each sample."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, code in coders(bits).items():
        of = found.setdefault(name, {"keys": [], "values": [], "attention": []})
        for sample in family:
            keys, values = code(sample.keys), code(sample.values)
            of["keys"].append(relative_error(keys, sample.keys))
            of["values"].append(relative_error(values, sample.values))
            of["attention"].append(attention_error(sample, keys, values))
    return found


def main() -> None:
    """Measure and write docs/results/turbo_choice.json."""
    rows = []
    for family, members in samples().items():
        for bits in (4, 3, 2):
            found = errors(members, bits)
            for what in ("keys", "values", "attention"):
                ours, plain = (Spread.of(found[name][what]) for name in ("turbo", "absmax"))
                ratio = float(f"{plain.median / ours.median:.4g}")
                others = {
                    name: Spread.of(of[what]).median
                    for name, of in found.items()
                    if name not in ("turbo", "absmax")
                }
                rows.append(
                    Row(
                        f"turbo{bits}, {family}, {what}",
                        "relative RMS error",
                        ours,
                        Peer.of("absmax in the same bytes", plain),
                        ratio,
                        1.0,
                        ratio > 1.0,
                        {"others": others},
                    )
                )
    write_results("turbo_choice", rows)
    assert all(row.holds for row in rows), "plain absmax is better somewhere"


if __name__ == "__main__":
    main()
