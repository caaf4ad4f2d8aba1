"""What each storage format costs a real model: errors of its rows, and of what the model says after them.

A prefix is prefilled once in fp32. Each arm packs and unpacks its K/V rows with the format, lets the model
answer questions from them, and is compared with the un-cached run: teacher-forced KL and top-1 agreement over
the reference's own tokens, first-token agreement, BLEU and identity of greedy answers. A second prefix holds
codes to be recalled digit by digit. Keys and values are also tried alone, the other side exact.

    python tests/benchmarks/bench_quality.py [--questions 20] [--tokens 50] [--quick]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pionkv.kernels.blas import preload_blas

BLAS = preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from harness import Row, Spread, write_results  # noqa: E402
from mlx_lm.models.cache import BatchKVCache, KVCache  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pionkv.client.demo import conversation, smollm  # noqa: E402
from pionkv.client.prefill import prefill  # noqa: E402
from pionkv.kernels import (  # noqa: E402
    FORMATS,
    LAYER_FORMATS,
    Element,
    FormatError,
    LayerSpec,
    keys_format,
    pack,
    unpack,
)
from pionkv.kernels.formats import HEAD  # noqa: E402

Rows = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Keys and values of every layer, each `(tokens, heads * head_dim)`."""

CHUNK = 256
EXACT = "fp32"


@dataclass(frozen=True)
class Arm:
    """Formats of one measurement, layer by layer."""

    name: str
    keys: Callable[[int, int], str]
    values: Callable[[int, int], str]
    answers: bool = True
    """Whether greedy answers and recall are looked at, besides the teacher-forced figures."""

    @classmethod
    def uniform(cls, name: str, keys: str, values: str, *, answers: bool = True) -> Arm:
        return cls(name, lambda layer, layers: keys, lambda layer, layers: values, answers)

    @classmethod
    def protected(cls, values: str, boundary: int) -> Arm:
        def pick(layer: int, layers: int) -> str:
            return values if boundary <= layer < layers - boundary else "fp16"

        return cls(f"K fp16, V {values}, boundary_protect {boundary}", lambda *_: "fp16", pick)


@dataclass
class Prompt:
    """A prefix, its exact rows, and suffixes with the un-cached answers."""

    prefix: list[int]
    rows: Rows
    suffixes: list[list[int]]
    answers: list[list[int]] = field(default_factory=list)
    logprobs: list[mx.array] = field(default_factory=list)


class Bench:
    """The model and the measurements on it."""

    def __init__(self, tokens: int) -> None:
        loaded = smollm.load()
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.tokens = tokens
        self.head_dim = 64

    def prepare(self, prefix: list[int], suffixes: list[list[int]]) -> Prompt:
        caches = prefill(self.model, prefix, CHUNK)
        rows = [(_rows(c.keys, c.offset), _rows(c.values, c.offset)) for c in caches]
        prompt = Prompt(prefix, rows, suffixes)
        prompt.answers = self.greedy(prompt, rows)
        prompt.logprobs = self.teacher_forced(prompt, rows)
        return prompt

    def caches(self, rows: Rows) -> list[KVCache]:
        out = []
        for keys, values in rows:
            k, v = self._heads(keys), self._heads(values)
            out.append(KVCache.from_state((k, v, k.shape[2])))
        return out

    def _heads(self, rows: NDArray[np.float32]) -> mx.array:
        return mx.array(rows).reshape(1, rows.shape[0], -1, self.head_dim).transpose(0, 2, 1, 3)

    def teacher_forced(self, prompt: Prompt, rows: Rows) -> list[mx.array]:
        """Log-probabilities at every position of the reference answers."""
        out = []
        for suffix, answer in zip(prompt.suffixes, prompt.answers, strict=True):
            ids = suffix + answer[:-1]
            logits = self.model(mx.array(ids)[None], cache=self.caches(rows))[0, len(suffix) - 1 :]
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            mx.eval(logprobs)
            out.append(logprobs)
        return out

    def greedy(self, prompt: Prompt, rows: Rows) -> list[list[int]]:
        """Greedy answers to all suffixes, decoded as one batch."""
        filled, first = [], []
        for suffix in prompt.suffixes:
            caches = self.caches(rows)
            logits = self.model(mx.array(suffix)[None], cache=caches)[:, -1]
            first.append(mx.argmax(logits, axis=-1))
            mx.eval(first[-1], [c.state for c in caches])
            filled.append(caches)
        batch = [BatchKVCache.merge([caches[layer] for caches in filled]) for layer in range(len(rows))]
        token = mx.concatenate(first)
        found = [token]
        for _ in range(self.tokens - 1):
            token = mx.argmax(self.model(token[:, None], cache=batch)[:, -1], axis=-1)
            mx.eval(token)
            found.append(token)
        columns = np.array(mx.stack(found, axis=1))
        return [_until([int(t) for t in row], self.tokenizer.eos_id) for row in columns]

    def measure(self, prompt: Prompt, arm: Arm) -> dict[str, Any]:
        layers = len(prompt.rows)
        stored = exact = 0
        errors: list[tuple[float, float]] = []
        rows: Rows = []
        for layer, (keys, values) in enumerate(prompt.rows):
            pair, layer_errors = [], []
            for side, fmt in ((keys, arm.keys(layer, layers)), (values, arm.values(layer, layers))):
                decoded, size = _through(fmt, side, self.head_dim)
                stored, exact = stored + size, exact + 2 * side.size
                pair.append(decoded)
                layer_errors.append(_relative_rms(side, decoded))
            rows.append((pair[0], pair[1]))
            errors.append((layer_errors[0], layer_errors[1]))
        forced = self.teacher_forced(prompt, rows)
        steps = list(zip(prompt.logprobs, forced, strict=True))
        kl = [float(mx.mean(mx.sum(mx.exp(p) * (p - q), axis=-1))) for p, q in steps]
        agree = [float(mx.mean(mx.argmax(p, -1) == mx.argmax(q, -1))) for p, q in steps]
        figures = {
            "ratio_to_fp16": round(exact / stored, 3),
            "k_error_percent": round(100 * float(np.mean([e[0] for e in errors])), 3),
            "v_error_percent": round(100 * float(np.mean([e[1] for e in errors])), 3),
            "k_error_by_layer": [round(100 * e[0], 3) for e in errors],
            "v_error_by_layer": [round(100 * e[1], 3) for e in errors],
            "kl": float(f"{np.mean(kl):.3g}"),
            "kl_max_question": float(f"{max(kl):.3g}"),
            "top1_agreement": round(float(np.mean(agree)), 4),
            "questions": len(kl),
        }
        if arm.answers:
            pairs = list(zip(prompt.answers, self.greedy(prompt, rows), strict=True))
            figures["first_token"] = sum(a[0] == b[0] for a, b in pairs)
            figures["identical"] = sum(a == b for a, b in pairs)
            figures["bleu"] = round(float(np.mean([bleu(a, b) for a, b in pairs])), 3)
        return figures

    def recall_through(self, prompt: Prompt, codes: Sequence[str], arm: Arm) -> tuple[int, int]:
        """What is recalled after the prefix went through the arm's formats."""
        layers = len(prompt.rows)
        through = [
            (
                _through(arm.keys(i, layers), k, self.head_dim)[0],
                _through(arm.values(i, layers), v, self.head_dim)[0],
            )
            for i, (k, v) in enumerate(prompt.rows)
        ]
        return self.recall(prompt, codes, through)

    def recall(self, prompt: Prompt, codes: Sequence[str], rows: Rows) -> tuple[int, int]:
        """Codes recalled whole, and digits recalled at their place."""
        whole = digits = 0
        for code, answer in zip(codes, self.greedy(prompt, rows), strict=True):
            said = "".join(c for c in self.tokenizer.decode(answer) if c.isdigit())
            whole += said[: len(code)] == code
            digits += sum(a == b for a, b in zip(code, said, strict=False))
        return whole, digits


def bleu(reference: Sequence[int], candidate: Sequence[int], order: int = 4) -> float:
    """BLEU-4 of token ids with add-one smoothing above unigrams and a brevity penalty (Lin and Och, 2004)."""
    if list(reference) == list(candidate):
        return 1.0
    logs = []
    for n in range(1, order + 1):
        ours = Counter(tuple(candidate[i : i + n]) for i in range(len(candidate) - n + 1))
        theirs = Counter(tuple(reference[i : i + n]) for i in range(len(reference) - n + 1))
        matched, total = sum((ours & theirs).values()), sum(ours.values())
        smooth = 0 if n == 1 else 1
        if matched + smooth == 0 or total + smooth == 0:
            return 0.0
        logs.append(math.log((matched + smooth) / (total + smooth)))
    penalty = min(0.0, 1 - len(reference) / max(1, len(candidate)))
    return math.exp(sum(logs) / order + penalty)


ROOMS = tuple(
    f"{color} {room}" for color in ("red", "blue", "green", "white") for room in ("hall", "gate", "barn")
)


def needles(tokenizer: Any, seed: int = 7) -> tuple[list[int], list[list[int]], list[str]]:
    """A list of rooms with six-digit codes, a question for each of them, and the codes."""
    rng = random.Random(seed)
    codes = ["".join(rng.choice("0123456789") for _ in range(6)) for _ in ROOMS]
    text = "You know these access codes.\n" + "\n".join(
        f"The access code of the {room} is {code}." for room, code in zip(ROOMS, codes, strict=True)
    )
    prefix = conversation.prefix_ids(tokenizer, text)
    suffixes = [
        conversation.suffix_ids(tokenizer, f"What is the access code of the {room}?", text)
        + tokenizer.encode(f"The access code of the {room} is ")
        for room in ROOMS
    ]
    return prefix, suffixes, codes


def arms(quick: bool) -> list[Arm]:
    usable = [name for name in FORMATS if name != EXACT and _fits(name)]
    if quick:
        usable = [name for name in usable if name in {"fp16", "int8", "mlx4g32", "turbo4"}]
    groups = [name for name in LAYER_FORMATS if keys_format(name) != name]
    out = [Arm.uniform(name, keys_format(name), name) for name in (*usable, *groups)]
    quantised = [name for name in usable if FORMATS[name].quantized]
    out += [Arm.uniform(f"K {name} only", name, EXACT) for name in quantised]
    out += [Arm.uniform(f"V {name} only", EXACT, name) for name in quantised]
    out += [Arm.uniform("K int8, V mlx4g32", "int8", "mlx4g32")]
    out += [Arm.protected(name, 2) for name in ("fp8", "mlx4g32", "turbo4") if name in usable]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="four formats only")
    options = parser.parse_args()

    bench = Bench(options.tokens)
    tokenizer = bench.tokenizer
    questions = conversation.questions()[: options.questions]
    suffixes = [conversation.suffix_ids(tokenizer, q) for q in questions]
    prompt = bench.prepare(conversation.prefix_ids(tokenizer), suffixes)
    prefix, asked, codes = needles(tokenizer)
    needle = bench.prepare(prefix, asked)
    whole, digits = bench.recall(needle, codes, needle.rows)
    print(f"prefix {len(prompt.prefix)} tokens; un-cached: {whole} of {len(codes)} codes, {digits} digits")

    rows = []
    chosen = arms(options.quick)
    for number, arm in enumerate(chosen, 1):
        began = time.perf_counter()
        figures = bench.measure(prompt, arm)
        if arm.answers:
            figures["codes_recalled"], figures["digits_recalled"] = bench.recall_through(needle, codes, arm)
        one = Spread(figures["kl"], figures["kl"], figures["kl_max_question"])
        rows.append(Row(arm.name, "KL, nats a token", one, extra=figures))
        print(
            f"[{number}/{len(chosen)}] {arm.name}: KL {figures['kl']}, top-1 {figures['top1_agreement']}, "
            f"identical {figures.get('identical', '-')}, codes {figures.get('codes_recalled', '-')}, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    write_results(
        "quality",
        rows,
        model="SmolLM2-135M-Instruct, float32",
        prefix_tokens=len(prompt.prefix),
        greedy_tokens=options.tokens,
        recall_uncached={"codes": whole, "digits": digits, "of": len(codes), "prefix_tokens": len(prefix)},
        note="one prompt, no confidence intervals: treat KL ratios under 1.5 as ties",
    )


def _fits(name: str) -> bool:
    try:
        _spec(name, 192, 64).validate()
    except FormatError:
        return False
    return True


def _spec(name: str, dim: int, head_dim: int) -> LayerSpec:
    by_head = LAYER_FORMATS[name].group == HEAD
    return LayerSpec(name, dim, rope=32 if "rope" in name else 0, head_dim=head_dim if by_head else 0)


def _rows(array: mx.array, count: int) -> NDArray[np.float32]:
    plain = array[..., :count, :].transpose(0, 2, 1, 3).reshape(count, -1).astype(mx.float32)
    return np.ascontiguousarray(np.array(plain))


def _through(fmt: str, rows: NDArray[np.float32], head_dim: int) -> tuple[NDArray[np.float32], int]:
    """Rows as they come back from storage, and the bytes they took."""
    spec = _spec(fmt, rows.shape[1], head_dim)
    if spec.details.grouped:
        return _through_groups(spec, rows)
    packed = np.empty(rows.shape[0] * spec.row_bytes, np.uint8)
    pack(spec, rows, Element.F32, rows.shape[0], packed)
    out = np.empty_like(rows)
    unpack(spec, packed, rows.shape[0], Element.F32, out)
    return out, packed.nbytes


def _through_groups(spec: LayerSpec, rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """The same where groups of rows are coded, and the newest ones stay in fp16."""
    out = rows.astype(np.float16).astype(np.float32)
    closed = spec.coded_rows(len(rows))
    packed = np.empty(closed * spec.row_bytes, np.uint8)
    pack(spec, np.ascontiguousarray(out[:closed]), Element.F32, closed, packed)
    unpack(spec, packed, closed, Element.F32, out)
    return out, spec.stored_bytes(len(rows))


def _relative_rms(exact: NDArray[np.float32], decoded: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(exact - decoded) / np.linalg.norm(exact))


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


if __name__ == "__main__":
    main()
