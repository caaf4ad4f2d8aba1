"""The published client `pion-vllm-mlx`, unmodified and in its own environment, against our server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import peers
from outcome import Check, holds, same
from server_process import ServerProcess

PEER = "pion-vllm-mlx 0.1.6"
SHORT = {"questions": 2, "tokens": 8, "short": True}
LONG = {"questions": 20, "tokens": 50, "short": False}
SECONDS = 1800
TINY, TINY_EXACT = "llama-float16", "llama-float32"
WAYS = {"binary": "binary lane", "resp": "RESP", "merge": "merged by the client"}


def checks(server: ServerProcess, *, long: bool) -> Iterator[Check]:
    """Everything that the published client can do with a store."""
    yield Check(PEER, "PionPromptCache, BATCH", partial(prompt_cache, server, TINY, "batch"))
    yield Check(PEER, "PionPromptCache, RANGE", partial(prompt_cache, server, TINY, "range"))
    yield Check(PEER, "PionPromptCache, export (mlx-lm 0.31)", partial(prompt_cache, server, TINY, "export"))
    yield Check(PEER, "PionPromptCache, boundary_protect", partial(boundary_protect, server))
    yield Check(PEER, "PionPromptCache, admission threshold", partial(admission, server))
    for bitexact in (False, True):
        yield Check(
            PEER,
            f"PionPromptCache, hybrid model, softmax_bitexact={bitexact}",
            partial(prompt_cache, server, "hybrid-float16", "batch", options={"softmax_bitexact": bitexact}),
        )
    for model in ("llama-float16", "llama-bfloat16", "llama-float32"):
        yield Check(PEER, f"PionPrefixStore, {model}", partial(prefix_store, server, model))
        yield Check(PEER, f"HybridRetrievalCache, {model}", partial(retrieval, server, model))
    yield Check(PEER, "SmolLM2 float16", partial(prompt_cache, server, "smollm-float16", "batch", long=long))
    yield Check(PEER, "SmolLM2 float32", partial(prompt_cache, server, "smollm-float32", "batch", long=long))
    for model, lane in (
        *((TINY_EXACT, lane) for lane in ("binary", "resp", "merge")),
        *(("smollm-float32", lane) for lane in ("binary", "resp")),
    ):
        yield Check(
            PEER,
            f"stage2, {model}, {WAYS[lane]}",
            partial(attention, model, lane, long=long and lane == "binary"),
        )
    yield Check(PEER, "serve: one chat, a restart, the same chat", partial(serve, server))


def prompt_cache(
    server: ServerProcess,
    model: str,
    lane: str,
    *,
    long: bool = False,
    options: dict[str, Any] | None = None,
) -> str:
    """A miss in one process, hits in another after a crash of the server: the same K/V bits and tokens."""
    wishes = (LONG if long else SHORT) | {"lane": lane, "options": options or {}}
    run = partial(_prompt_cache, server, model, wishes)
    filled = run("fill")
    server.restart(crash=True)
    read = run("answer")
    same("hits and misses", (read["hits"], read["misses"]), (wishes["questions"] + 1, 0))
    same("the lane stayed open", (read["export_off"], read["batch_off"]), (lane != "export", lane == "range"))
    exact = options == {"softmax_bitexact": True} or model.endswith("float16") and "bfloat" not in model
    same("K/V bits, the client's cast to float16 aside", read["digest"], filled["digest_half"])
    same("tokens after the same cast without a store", read["restored"], filled["cold_half"])
    if exact:
        same("K/V bits", read["digest"], filled["digest"])
        same("tokens without a store", read["restored"], filled["cold"])
    pairs = list(zip(read["restored"], filled["cold"], strict=True))
    return (
        f"{sum(a == b for a, b in pairs)} of {len(pairs)} answers of {wishes['tokens']} tokens as un-cached"
    )


def boundary_protect(server: ServerProcess) -> str:
    """Values of the middle layers in fp8: tokens may differ, so the hits are what is checked."""
    options = {"boundary_protect": 1, "vquant": "fp8"}
    wishes = SHORT | {"lane": "batch", "options": options}
    _prompt_cache(server, TINY, wishes, "fill")
    server.restart(crash=True)
    read = _prompt_cache(server, TINY, wishes, "answer")
    same("hits and misses", (read["hits"], read["misses"]), (SHORT["questions"] + 1, 0))
    holds("BATCH stayed open", not read["batch_off"])
    return "schemas published, hits after a restart"


def admission(server: ServerProcess) -> str:
    """Below the threshold nothing is sent."""
    wishes = SHORT | {"lane": "batch", "options": {"admission_threshold": 2}}
    same("skips", _prompt_cache(server, TINY, wishes, "fill")["admission_skips"], 1)
    read = _prompt_cache(server, TINY, wishes | {"questions": 1}, "answer")
    same("misses of the next process", (read["misses"], read["admission_skips"]), (2, 1))
    return "first miss kept local, second published"


def prefix_store(server: ServerProcess, model: str) -> str:
    """A lineage of two branches, restored after a crash of the server, then evicted."""
    run = partial(_stores, server, model)
    filled = run("prefix_fill")
    same("rows stored", filled["stored"], [128, 72, 60])
    same("segments and errors", (filled["segments"], filled["errors"]), (2, 0))
    server.restart(crash=True)
    read = run("prefix_read")
    same("tokens matched", (read["match"], read["branch"], read["other"]), (200, 210, 0))
    holds("the journal came back and went", read["journal"] and read["journal_dropped"])
    if model != "llama-float32":
        same("K/V bits", read["digest"], filled["digest"])
    same("tokens", read["tokens"], filled["tokens"])
    same("after making room: evictions, match", (read["evictions"] >= 2, read["after"]), (True, 0))
    same("errors, still evicting", (read["errors"], read["evicting"]), (0, True))
    return f"{read['match']} tokens restored, {read['evictions']} segments evicted"


def retrieval(server: ServerProcess, model: str) -> str:
    """A passage ingested in one process and continued in another."""
    filled = _stores(server, model, "retrieval_fill")
    server.restart(crash=True)
    read = _stores(server, model, "retrieval_read")
    same("known passages", read["has"], [True, False])
    same("tokens", read["tokens"], filled["tokens"])
    return "same tokens from another process"


def attention(model: str, lane: str, *, long: bool) -> str:
    """A prefix stored in one process, attended to in the server by another after a crash of the server."""
    wishes = (LONG if long else SHORT) | {"lane": lane}
    with tempfile.TemporaryDirectory() as folder:
        server = with_lane(Path(folder) / "data")
        try:
            filled = _attention(server, model, wishes, "fill")
            same("misses", filled["misses"], 1)
            server.restart(crash=True)
            read = _attention(server, model, wishes, "answer")
        finally:
            server.close()
    same("lookup, hits of the first stage", (read["found"], read["hits"]), (True, wishes["questions"]))
    same("tokens of both stages", read["second"], read["first"])
    holds(
        f"{read['queries']} queries",
        read["queries"] >= read["layers"] * wishes["questions"] * wishes["tokens"],
    )
    same("the binary lane was used to the end", read["binary"], lane == "binary")
    return (
        f"{len(read['second'])} answers of {wishes['tokens']} tokens as in stage 1, {read['queries']} queries"
    )


def with_lane(data: Path) -> ServerProcess:
    """A server whose binary lane is where this client looks for it: at the port and 1."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                break
    server = ServerProcess(data, "--binary-port", str(port + 1))
    server.start(port)
    return server


def serve(server: ServerProcess) -> str:
    """Its HTTP server answers a chat, dies, is started again and answers the same from the store."""
    folder = peers.FOLDER / "model"
    peers.run_driver(peers.stock_python(), "stock_model_folder", str(folder), timeout=SECONDS)
    with _http_server(server, folder) as port:
        first, usage = _chat(port)
        stored = _get(port, "/v1/pion/stats")
    server.restart(crash=True)
    with _http_server(server, folder) as port:
        second, usage_again = _chat(port)
        restored = _get(port, "/v1/pion/stats")
    same("answer", second, first)
    holds(f"rows stored: {stored}", stored["tokens_stored"] > 0 and stored["errors"] == 0)
    cached = usage_again["prompt_tokens_details"]["cached_tokens"]
    holds(f"rows restored: {restored}", restored["restores"] == 1 and cached >= usage["prompt_tokens"] - 1)
    return f"{cached} of {usage['prompt_tokens']} prompt tokens came from the store; answer {first!r}"


def _prompt_cache(server: ServerProcess, model: str, wishes: dict[str, Any], what: str) -> dict[str, Any]:
    path = [peers.stock_old_mlx_lm()] if wishes["lane"] == "export" else None
    arguments = (str(server.port), model, what, json.dumps(wishes))
    printed = peers.run_driver(
        peers.stock_python(), "stock_prompt_cache", *arguments, path=path, timeout=SECONDS
    )
    result: dict[str, Any] = json.loads(printed)
    return result


def _attention(server: ServerProcess, model: str, wishes: dict[str, Any], what: str) -> dict[str, Any]:
    arguments = (str(server.port), model, what, json.dumps(wishes))
    printed = peers.run_driver(peers.stock_python(), "stock_attention", *arguments, timeout=SECONDS)
    result: dict[str, Any] = json.loads(printed)
    return result


def _stores(server: ServerProcess, model: str, what: str) -> dict[str, Any]:
    python = peers.stock_python()
    printed = peers.run_driver(python, "stock_stores", str(server.port), what, model, timeout=SECONDS)
    result: dict[str, Any] = json.loads(printed)
    return result


@contextlib.contextmanager
def _http_server(server: ServerProcess, model: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(peers.stock_python()), "-m", "pion_vllm_mlx", "serve", "--model", str(model)]
    command += ["--port", str(port), "--pion-port", str(server.port), "--temp", "0"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "LD_PRELOAD": _blas()}
    log = peers.FOLDER / "serve.log"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert process.stdout is not None
    try:
        if not any("/v1/chat/completions" in line for line in process.stdout):
            raise RuntimeError(f"serve did not start: {log.read_text(encoding='utf-8')[-2000:]}")
        _wait_for_port(process, port)
        yield port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _wait_for_port(process: subprocess.Popen[str], port: int) -> None:
    """Return when somebody listens; the line that it prints comes a little earlier."""
    while process.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    raise RuntimeError(f"serve ended with {process.returncode}")


def _blas() -> str:
    """OpenBLAS for a process that we do not write; empty where there is none."""
    found = sorted(Path("/usr/lib").glob("*/openblas-pthread/libopenblas.so.0"))
    return str(found[0]) if found else ""


def _chat(port: int) -> tuple[str, dict[str, Any]]:
    system = "You answer in one short sentence. " * 8
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    body = {"model": "x", "messages": messages, "max_tokens": 16, "temperature": 0}
    answer = _request(port, "POST", "/v1/chat/completions", json.dumps(body))
    return answer["choices"][0]["message"]["content"], answer["usage"]


def _get(port: int, path: str) -> dict[str, Any]:
    return _request(port, "GET", path, None)


def _request(port: int, method: str, path: str, body: str | None) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
    same(f"status of {path} ({text[:200]!r})", reply.status, 200)
    result: dict[str, Any] = json.loads(text)
    return result
