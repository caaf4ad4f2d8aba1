"""What identifies a model: stable over processes, and another for anything that changes K or V."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tokenizers
from mlx_lm.tuner.utils import linear_to_lora_layers
from pionkv.client import PionPromptCache
from pionkv.client.digest import FIELDS, differences
from pionkv.client.fingerprint import identify
from pionkv.client.reuse import name_of
from small_models import MODELS, build, plain


def digest(model: Any, **options: Any) -> str:
    return identify(model, **options).digest


def vocabulary(**changes: int) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, **changes}, unk_token="a"))


class Templated:
    """What mlx-lm's wrapper looks like."""

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self.chat_template = template


def adapted(model: Any, fill: float = 0.0, *, scale: float = 2.0, dora: bool = False) -> Any:
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": scale, "dropout": 0.0}, use_dora=dora)
    for layer in model.layers:
        for _, module in layer.named_modules():
            if hasattr(module, "lora_b"):
                module.lora_b = module.lora_b + fill
                module.lora_a = mx.ones_like(module.lora_a)
    return model


def quantised(model: Any, bits: int, group_size: int = 32, mode: str = "affine") -> Any:
    nn.quantize(model, group_size=group_size, bits=bits, mode=mode)
    return model


def stretched(kind: str, factor: float) -> Any:
    scaling = {
        "rope_type": kind, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    return build(lambda: plain(rope_scaling=scaling))


def nudged(model: Any) -> Any:
    weight = model.layers[0].self_attn.k_proj.weight
    model.layers[0].self_attn.k_proj.weight = weight * 1.01
    return model


CHANGES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "weights": (lambda: nudged(build(plain)), ("weights",)),
    "other weights": (lambda: build(plain, seed=8), ("weights",)),
    "rope base": (lambda: build(lambda: plain(rope_theta=5e5)), ("rope",)),
    "rope pairing": (lambda: build(lambda: plain(rope_traditional=True)), ("rope",)),
    "rope scaling": (
        lambda: build(lambda: plain(rope_scaling={"rope_type": "linear", "factor": 2.0})),
        ("rope",),
    ),
    "llama 3's rope": (lambda: stretched("llama3", 8.0), ("rope",)),
    "yarn": (lambda: stretched("yarn", 2.0), ("rope",)),
    "element type": (lambda: build(plain, "float16"), ("weights",)),
    "norm": (lambda: build(lambda: plain(rms_norm_eps=1e-6)), ("architecture",)),
    "depth": (lambda: build(lambda: plain(num_hidden_layers=3)), FIELDS),
    "quantised": (lambda: quantised(build(plain), 4), ("quantisation", "weights")),
    "adapter": (lambda: adapted(build(plain)), ("adapter",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_told_by_its_field(name: str) -> None:
    make, fields = CHANGES[name]
    found = differences(digest(build(plain)), digest(make()))
    assert found and set(found) <= set(fields)
    assert fields is FIELDS or found == fields


def test_adapters_and_quantisations_differ_among_themselves() -> None:
    assert differences(digest(adapted(build(plain))), digest(adapted(build(plain), 0.1))) == ("adapter",)
    four, eight = (digest(quantised(build(plain), bits)) for bits in (4, 8))
    assert differences(four, eight) == ("quantisation", "weights")


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_how_far_a_rope_is_stretched(kind: str) -> None:
    assert differences(digest(stretched(kind, 2.0)), digest(stretched(kind, 4.0))) == ("rope",)


def test_what_an_adapter_and_a_quantisation_are_made_with() -> None:
    adapter, same = (digest(adapted(build(plain))) for _ in range(2))
    assert adapter == same
    for other in (adapted(build(plain), scale=3.0), adapted(build(plain), dora=True)):
        assert differences(adapter, digest(other)) == ("adapter",)
    base = digest(quantised(build(plain), 4))
    assert differences(base, digest(adapted(quantised(build(plain), 4)))) == ("adapter",)
    for other in (quantised(build(plain), 4, 64), quantised(build(plain), 4, 32, "mxfp4")):
        assert differences(base, digest(other)) == ("quantisation", "weights")


def test_training_is_no_part_of_it() -> None:
    model = build(plain)
    before = digest(model)
    model.train()
    assert digest(model) == before


def test_tokenizers_templates_caches_and_formats() -> None:
    model = build(plain)
    first = digest(model, tokenizer=Templated(vocabulary(), "x"), caches=("KVCache",), format="fp16")
    assert len(first) <= 128
    for field, changed in {
        "tokenizer": {"tokenizer": Templated(vocabulary(c=2), "x")},
        "template": {"tokenizer": Templated(vocabulary(), "y")},
        "caches": {"caches": ("RotatingKVCache",)},
        "format": {"format": "int8"},
    }.items():
        given = {"tokenizer": Templated(vocabulary(), "x"), "caches": ("KVCache",), "format": "fp16"}
        assert differences(first, digest(model, **{**given, **changed})) == (field,)


def test_padding_of_an_earlier_call_is_not_the_tokenizer() -> None:
    padded = vocabulary()
    padded.enable_padding(length=7)
    padded.enable_truncation(5)
    model = build(plain)
    assert digest(model, tokenizer=padded) == digest(model, tokenizer=vocabulary())


def test_one_element_is_seen_by_the_full_fingerprint_only() -> None:
    model = build(plain)
    quick, full = digest(model), digest(model, full=True)
    weight = model.model.embed_tokens.weight
    weight[17, 13] = 9.0
    assert digest(model) == quick
    assert differences(digest(model, full=True), full) == ("weights",)


def test_what_is_no_digest_differs_in_everything() -> None:
    assert differences(digest(build(plain)), "somebody's own") == ("everything",)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pionkv.client import PionPromptCache
from pionkv.client.digest import digest_of
from pionkv.client.fingerprint import identify
from pionkv.client.reuse import name_of
from small_models import MODELS, build
for make in MODELS.values():
    print(identify(build(make), {"no": "tokenizer"}, caches=("a", 1), format={"b": 2}).digest)
print(digest_of([{"q_proj", "k_proj", "v_proj", "o_proj"}, frozenset(range(9)), build, object(), b"x"]))
"""


def test_the_digest_is_the_same_in_every_process() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    one, other = (process.communicate()[0].split() for process in running)
    assert one == other
    assert len(set(one)) == len(MODELS) + 1


def test_token_ids_of_any_type_name_the_same_prefix(tiny: Callable[..., Any], store_port: int) -> None:
    ids = list(range(17, 117))
    cache = PionPromptCache(tiny(), port=store_port, background=False)
    cache.get_or_prefill(np.asarray(ids, np.uint16))
    for given in (
        ids,
        tuple(ids),
        np.asarray(ids, np.int64),
        mx.array(ids),
        [np.int32(each) for each in ids],
    ):
        caches, tokens = cache.restore(given)
        assert caches is not None and tokens == len(ids)
        assert cache.explain(given)["namespace"] == name_of(cache.model_digest, ids)
    assert cache.stats()["stores"] == 1
