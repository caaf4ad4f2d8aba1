"""mlx-lm's HTTP server with our prompt cache: what a client of its endpoints sees."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from http_server import HttpServer, cached
from mlx_lm import load, server
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache
from model_folder import save
from pionkv.client import PionPromptCache, PromptStore, StoreClient, mlx_server
from pionkv.client.endpoint import Endpoint
from pionkv.client.mlx_server import LEAST_GAIN, ModelStore, SeamMoved, StoredPromptCache, check_seam
from small_models import MODELS, build
from typer.testing import CliRunner

SYSTEM = {"role": "system", "content": "You keep the lamps of a harbour, and answer in one line."}
QUESTIONS = [
    [SYSTEM, {"role": "user", "content": f"What is told about lamp number {number}?"}] for number in range(4)
]
TOKENS = {"max_tokens": 24}

Serve = Callable[..., HttpServer]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small models, by name."""
    saved: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in saved:
            saved[name] = save(build(MODELS[name]), tmp_path_factory.mktemp("model"))
        return saved[name]

    return find


@pytest.fixture
def serve(folder: Callable[[str], Path]) -> Iterator[Serve]:
    started: list[HttpServer] = []

    def start(port: int, name: str = "llama", *flags: str) -> HttpServer:
        started.append(HttpServer(folder(name), f"redis://127.0.0.1:{port}", *flags))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.parametrize("name", ["llama", "qwen3-next", "gemma3"])
def test_a_restarted_server_restores(
    name: str, serve: Serve, emptied_process: Any, folder: Callable[[str], Path]
) -> None:
    first = serve(emptied_process.port, name)
    text, usage = first.chat(QUESTIONS[0], **TOKENS)
    assert cached(usage) == 0 and text
    assert first.close() == 0
    second = serve(emptied_process.port, name)
    again, used = second.chat(QUESTIONS[0], **TOKENS)
    assert (again, cached(used)) == (text, usage["prompt_tokens"] - 1)
    # Another conversation with the same system prompt.
    assert 0 < cached(second.chat(QUESTIONS[1], **TOKENS)[1]) < used["prompt_tokens"] - 1
    model, tokenizer, *_ = load(str(folder(name)))
    with PromptStore(model, tokenizer, port=emptied_process.port) as store:
        ids = store.tokens(QUESTIONS[0])
        assert store.cache.explain(ids)["stored"] >= used["prompt_tokens"] - 1


def test_two_servers_share_one_store(serve: Serve, emptied_process: Any) -> None:
    one, other = serve(emptied_process.port), serve(emptied_process.port)
    texts = [one.chat(question, **TOKENS)[0] for question in QUESTIONS]
    asked = json.loads(one.post("/v1/completions", prompt="The lamps of the harbour are", **TOKENS))
    # One that does not wait for the other is asked when the other has published.
    one.close()
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        streams = list(pool.map(lambda question: other.stream(question, **TOKENS), QUESTIONS))
    assert [text for text, _ in streams] == texts
    # What one of them has restored serves the others; for a few tokens more the store is not asked.
    assert all(cached(usage) >= usage["prompt_tokens"] - 1 - LEAST_GAIN for _, usage in streams)
    completed = json.loads(other.post("/v1/completions", prompt="The lamps of the harbour are", **TOKENS))
    assert completed["choices"] == asked["choices"] and cached(completed["usage"]) > 0
    # A seed takes mlx-lm's other way, one request at a time.
    alone, usage = other.chat([*QUESTIONS[0], {"role": "user", "content": "And then?"}], seed=1, **TOKENS)
    assert alone and cached(usage) > 0


SLOWLY = ("--prefill-step-size", "8")


def long(mark: str) -> list[dict[str, str]]:
    lamps = " ".join(f"Lamp {number} burns oil." for number in range(80))
    return [{"role": "system", "content": mark + lamps}, {"role": "user", "content": "What of lamp 7?"}]


@pytest.fixture(scope="session")
def without(folder: Callable[[str], Path]) -> Iterator[HttpServer]:
    """A server whose store is not there: what it answers is right."""
    alone = HttpServer(folder("llama"), "redis://127.0.0.1:1", *SLOWLY)
    yield alone
    alone.kill()


def test_a_prompt_that_several_get_at_once_is_prefilled_once(
    serve: Serve, server_process: Any, without: HttpServer
) -> None:
    one, other = (serve(server_process.port, "llama", *SLOWLY) for _ in range(2))
    # With a seed requests are served one by one.
    for mark, options in (("a", {}), ("b", {"seed": 1})):
        prompt = long(mark)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(each.chat, prompt, **TOKENS, **options) for each in (one, other, one, other)]
            found = [each.result() for each in asked]
        assert [text for text, _ in found] == [without.chat(prompt, **TOKENS, **options)[0]] * 4
        *restored, computed = sorted((cached(usage) for _, usage in found), reverse=True)
        assert computed < LEAST_GAIN and min(restored) >= found[0][1]["prompt_tokens"] - 1
    with StoreClient(port=server_process.port) as store:
        calls: Any = store.redis.info("commandstats")
    # The server that has not computed a prompt takes its rows out of the store, then it holds them.
    assert 2 <= calls["cmdstat_kv.prefix.map"]["calls"] <= 6


def test_another_takes_over_when_a_server_dies_in_mid_prefill(
    serve: Serve, server_process: Any, without: HttpServer
) -> None:
    one, other = (serve(server_process.port, "llama", *SLOWLY) for _ in range(2))
    prompt = long("c")
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(one.chat, prompt, **TOKENS)
        one.wait_for_line("progress: 64/")
        os.kill(one.pid, signal.SIGSTOP)
        found = pool.submit(other.chat, prompt, **TOKENS)
        other.wait_for_line("waits for another")
        one.kill()
        assert found.result()[0] == without.chat(prompt, **TOKENS)[0]
        assert lost.exception() is not None


def test_a_store_with_a_password(
    serve: Serve, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start_server("--password", "secret")
    monkeypatch.setenv("PIONKV_PASSWORD", "secret")
    first = serve(store.port)
    first.chat(QUESTIONS[0], **TOKENS)
    first.close()
    assert cached(serve(store.port).chat(QUESTIONS[0], **TOKENS)[1]) > 0
    monkeypatch.delenv("PIONKV_PASSWORD")
    refused = serve(store.port)
    refused.chat(QUESTIONS[0], **TOKENS)
    assert any("is not used" in line for line in refused.log)


def test_packed_rows(serve: Serve, emptied_process: Any) -> None:
    flags = ("--kv-bits", "8", "--kv-group-size", "64", "--quantized-kv-start", "0")
    first = serve(emptied_process.port, "llama", *flags)
    text, usage = first.chat(QUESTIONS[0], **TOKENS)
    first.close()
    assert cached(serve(emptied_process.port, "llama", *flags).chat(QUESTIONS[0], **TOKENS)[1]) > 0
    # Rows that are not packed are another model's.
    assert cached(serve(emptied_process.port).chat(QUESTIONS[0], **TOKENS)[1]) == 0


def test_a_store_that_is_not_there(serve: Serve, start_server: Callable[..., Any]) -> None:
    store = start_server()
    with_it = serve(store.port)
    text, _ = with_it.chat(QUESTIONS[0], **TOKENS)
    store.kill()
    other, usage = with_it.chat(QUESTIONS[1], **TOKENS)
    without = serve(1)
    plain, unused = without.chat(QUESTIONS[0], **TOKENS)
    assert (plain, cached(unused)) == (text, 0)
    assert without.chat(QUESTIONS[1], **TOKENS)[0] == other
    assert cached(without.chat(QUESTIONS[0], **TOKENS)[1]) > 0, "mlx-lm's own cache works"
    assert without.close() == 0
    warned = [line for line in without.log if "WARNING" in line and "the store at 127.0.0.1:1 is" in line]
    assert len(warned) == 1


def test_a_prompt_that_is_held_whole_leaves_a_token(store_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(MODELS["llama"])
    provider = SimpleNamespace(model=model, tokenizer=None, model_key="m", draft_model=None)
    cache = StoredPromptCache(10, store := ModelStore(provider, Endpoint(port=store_port), {}))
    prompt = list(range(40))
    filled = make_prompt_cache(model)
    model(mx.array(prompt)[None], cache=filled)
    cache.insert_cache("m", prompt, filled)
    held, rest = cache.fetch_nearest_cache("m", prompt)
    assert held is not None and rest == prompt[-1:] and held[0].offset == len(prompt) - 1
    assert LRUPromptCache(10).fetch_nearest_cache("m", prompt) == (None, prompt)
    # Images stand in prompts as negative numbers: they are nobody's business but this process's.
    assert cache.fetch_nearest_cache("m", [-5, *prompt]) == (None, [-5, *prompt])
    # Whatever goes wrong in the store is no matter of the server's.
    monkeypatch.setattr(PionPromptCache, "keep", lambda *_: 1 / 0)
    cache.insert_cache("m", [*prompt, 7], filled)
    assert cache.fetch_nearest_cache("m", [*prompt, 7, 8])[1] == [8]
    monkeypatch.undo()
    provider.model_key, provider.draft_model = "n", model
    assert cache.fetch_nearest_cache("n", prompt) == (None, prompt)
    store.close()


def test_a_seam_that_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_seam()

    def insert_cache(self: Any, model: Any, tokens: Any, caches: Any) -> None:
        """As some later version may have it."""

    changed = {**mlx_server._PARAMETERS, insert_cache: ("self", "model", "tokens", "prompt_cache")}
    monkeypatch.setattr(mlx_server, "_PARAMETERS", changed)
    with pytest.raises(SeamMoved, match="insert_cache takes self, model, tokens, caches, not"):
        check_seam()
    monkeypatch.undo()
    monkeypatch.setattr(server.ResponseGenerator, "_serve_single", lambda self, request, stream: None)
    with pytest.raises(SeamMoved, match="does not use fetch_nearest_cache"):
        check_seam()


def test_what_the_command_line_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from pionkv.server.cli import build as application

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(application(["mlx-server"]), ["mlx-server", *arguments])

    wrong = run("--store", "http://x", "--model", "m")
    assert wrong.exit_code == 2 and "an address is redis://host:port" in wrong.output
    unknown = run("--store-format", "fp99", "--model", "m")
    assert unknown.exit_code == 2 and "fp99" in unknown.output
    shown = run("--", "--help")
    assert shown.exit_code == 0 and "--prompt-cache-size" in shown.output
    assert run("--model", "m", "--no-such-option").exit_code == 2
    monkeypatch.setattr(server.ResponseGenerator, "_generate", lambda self: None)
    moved = run("--model", "m")
    assert moved.exit_code == 1 and "mlx-lm 0." in moved.output
