"""`pionkv warm`: prompts are stored before anybody asks for them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tokenizers
from mlx.utils import tree_flatten
from mlx_lm import load
from pionkv.client import PromptStore
from server_process import ServerProcess
from small_models import build, plain
from test_client_verbs import answer, run
from transformers import PreTrainedTokenizerFast

PROMPTS = ["w5 w6 w7", [2, 3, *range(20, 100)], [{"role": "user", "content": "w9 w8"}]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that mlx-lm loads."""
    folder = tmp_path_factory.mktemp("model")
    model = build(plain)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {**dataclasses.asdict(model.args), "eos_token_id": 1}
    given = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(given))
    vocabulary = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, 300)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="</s>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="</s>",
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}w4",
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS))
    return path


def test_prompts_are_stored_once(emptied_process: ServerProcess, folder: Path, prompts: Path) -> None:
    port = emptied_process.port
    lengths = [3, 82, 3]
    rows = answer("warm", prompts, "--model", folder, "--port", port)
    assert [row["tokens"] for row in rows] == [row["prefilled"] for row in rows] == lengths
    rows = answer("warm", prompts, "--model", folder, "--port", port)
    assert [row["restored"] for row in rows] == lengths
    assert {(row["prefilled"], row["stored"], row["problem"]) for row in rows} == {(0, True, "")}
    # What loads the same model finds them.
    model, tokenizer, *_ = load(str(folder))
    store = PromptStore(model, tokenizer, port=port, background=False)
    assert [store.cache.explain(store.tokens(prompt))["stored"] for prompt in PROMPTS] == lengths
    store.close()


def test_what_cannot_be_stored_is_said(start_server: Callable[..., Any], folder: Path, prompts: Path) -> None:
    port = start_server("--max-bytes", "64kb").port
    result = run("warm", prompts, "--model", folder, "--port", port, "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [row["stored"] for row in rows] == [True, False, True]
    assert rows[1]["problem"].startswith("OOM")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "a list of prompts is expected, not a dict"),
        ('["a", [1, -1]]', "prompt 1 is no text"),
        ('[""]', "prompt 0 is no text"),
        ("[", "Expecting value"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    result = run("warm", path, "--port", 1)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_no_model_and_no_server_end_with_a_line(store_port: int, tmp_path: Path, prompts: Path) -> None:
    result = run("warm", prompts, "--port", 1)
    assert result.exit_code == 1 and "pionkv: 127.0.0.1:1" in result.output
    result = run("warm", prompts, "--port", store_port, "--model", tmp_path / "none")
    assert result.exit_code == 1 and "the model cannot be loaded" in result.output
