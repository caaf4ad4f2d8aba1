"""The verbs of the command line, on a real server."""

import json
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from pionkv.client import StoreClient
from pionkv.kernels import LayerSpec
from server_process import ServerProcess
from typer.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]
VERBS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pionkv.verbs"]
IDS = list(range(100, 140))


def run(verb: str, *arguments: object) -> Result:
    """Run a verb as the command line does."""
    module, _, name = VERBS[verb].partition(":")
    app = typer.Typer()
    app.command(verb)(getattr(import_module(module), name))
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(verb: str, *arguments: object) -> Any:
    result = run(verb, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def port(emptied_process: ServerProcess) -> int:
    """A server with a whole prefix `a` and half a one, `b`."""
    server = emptied_process
    with StoreClient(port=server.port, silence=30) as client:
        for name, sides in (("a", "kv"), ("b", "k")):
            table = np.asarray(IDS, "<u8").tobytes()
            client.redis.execute_command(
                "KV.PREFIX.REGISTER", name, 32, "fp16", "BLOCKS", 1, len(IDS), table, "MODEL", "m"
            )
            for side in sides:
                client.store(f"{name}_p{side}", 0, 0, np.ones((len(IDS), 32), np.float32))
    return int(server.port)


def test_ls_and_info(port: int) -> None:
    rows = {row["namespace"]: row for row in answer("ls", "--port", port)}
    assert sorted(rows) == ["a", "b"]
    assert (rows["a"]["answer"], rows["a"]["tokens"], rows["a"]["layers"]) == ("HIT", 40, 1)
    assert rows["b"]["answer"] == "MISS" and rows["b"]["reason"]
    assert [row["namespace"] for row in answer("ls", "b*", "--port", port)] == ["b"]
    found = answer("info", "--port", port)
    assert found["namespaces"] == 2 and found["pionkv_version"] and "used_memory_rss" in found
    shown = run("ls", "--port", port).stdout
    assert "namespace" in shown and "HIT" in shown


def test_match_and_explain(port: int, tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps([*IDS[:30], 7]))
    found = answer("match", "--file", file, "--model", "m", "--port", port)
    assert (found["namespace"], found["tokens"], found["asked"]) == ("a", 30, 31)
    missed = run("match", "--tokens", "1,2", "--model", "m", "--port", port, "--json")
    assert (missed.exit_code, json.loads(missed.stdout)["namespace"]) == (1, None)
    explained = answer("explain", "a", "--file", file, "--model", "m", "--port", port)
    assert (explained["answer"], explained["differs_at"]) == ("HIT", 30)
    assert answer("explain", "nobody", "--port", port)["answer"] == "MISS"
    assert run("match", "--tokens", "a,b", "--port", port).exit_code == 2


def test_verify_finds_damage(start_server: Callable[..., Any]) -> None:
    server = start_server()
    with StoreClient(port=server.port, silence=30) as client:
        client.register("a", LayerSpec("fp16", 32))
        for side in "kv":
            client.store(f"a_p{side}", 0, 0, np.ones((9, 32), np.float32))
    rows = answer("verify", "--port", server.port)
    assert rows == [{"namespace": "a", "bytes": 2 * 9 * 64, "problem": ""}]
    (page, *_) = sorted((server.data_dir / "pages").iterdir())
    with page.open("r+b") as file:
        file.seek(4096)
        file.write(b"\0" * 8)
    result = run("verify", "a", "--port", server.port, "--json")
    assert result.exit_code == 1
    assert "QUARANTINED" in result.stdout or "digest" in result.stdout


def test_bench_and_top(port: int) -> None:
    rows = answer("bench", "--megabytes", 2, "--rounds", 1, "--port", port)
    assert [row["work"] for row in rows] == ["store", "fetch over tcp"]
    assert all(row["megabytes_per_second"] > 0 and row["megabytes"] == 2.0 for row in rows)
    assert len(answer("ls", "--port", port)) == 2, "nothing is left behind"
    result = run("top", "--interval", 0.05, "--count", 2, "--port", port, "--json")
    looks = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(looks) == 2 and looks[0]["namespaces"] == 2
    assert looks[0]["total_commands_processed/s"] > 0
    assert "stored_bytes" in run("top", "--interval", 0.05, "--count", 1, "--port", port).stdout


@pytest.mark.parametrize("verb", ["ls", "info", "verify", "bench", "top"])
def test_a_server_that_is_not_there(verb: str) -> None:
    result = run(verb, "--port", 1)
    assert result.exit_code == 1 and "pionkv: 127.0.0.1:1: " in result.output


def test_explain_without_a_name_says_what_is_stored_of_tokens(port: int) -> None:
    ids = ",".join(map(str, IDS[:30]))
    found = answer("explain", "--tokens", ids, "--model", "m", "--port", port)
    assert (found["stored"], found["namespace"], found["others"]) == (30, "a", [])
    other = answer("explain", "--tokens", ids, "--model", "n", "--port", port)
    assert other["stored"] == 0
    assert other["others"] == [{"model": "m", "stored": 30, "differs": "everything"}]
    shown = run("explain", "b", "--port", port).stdout
    assert "do not hold the same rows" in shown


@pytest.mark.parametrize("verb", ["match", "explain"])
def test_tokens_that_are_not_given_are_asked_for(verb: str, port: int) -> None:
    result = run(verb, "--port", port)
    assert result.exit_code == 2 and "--tokens 1,2,3" in result.output


def test_tables_show_whole_names_and_say_when_there_is_nothing(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    assert run("ls", "x*", "--port", server.port).stdout == "no prefix is called x*\n"
    assert run("ls", "--port", server.port).stdout == "nothing is stored\n"
    assert answer("ls", "--port", server.port) == []
    assert run("verify", "--port", server.port).stdout.strip() == "nothing is stored"
    name = "tokens:" + "0123456789abcdef" * 2
    with StoreClient(port=server.port, silence=30) as client:
        client.register(name, LayerSpec("fp16", 32))
        for side in "kv":
            client.store(f"{name}_p{side}", 0, 0, np.ones((1000, 32), np.float32))
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("ls", "--port", server.port).stdout
    first = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert first == name and "128,000" in shown
    # What is no terminal, and has no width, gets a row on a line.
    monkeypatch.delenv("COLUMNS")
    assert f"│ {name} │" in run("ls", "--port", server.port).stdout
    assert "pion" in run("info", "--port", server.port).stdout


def test_what_is_given_beside_an_address_wins(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIONKV_URL", "redis://127.0.0.1:1")
    assert run("ls").exit_code == 1
    assert len(answer("ls", "--port", port)) == 2
    monkeypatch.setenv("PIONKV_URL", f"redis://127.0.0.1:{port}")
    assert len(answer("ls")) == 2
    refused = run("ls", "--port", 1)
    assert refused.exit_code == 1 and "Is `pionkv serve` running there?" in refused.output
    of_rows = run("explain", "--tokens", "1", "--port", 1)
    assert of_rows.exit_code == 1 and "Is `pionkv serve` running there?" in of_rows.output
    wrong = run("ls", "--url", "http://x")
    assert wrong.exit_code == 2 and "--url" in wrong.output
    monkeypatch.setenv("PIONKV_URL", "unix:///nowhere")
    assert len(answer("ls", "--port", port)) == 2


def test_a_password_comes_from_the_environment(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("--password", "secret")
    refused = run("info", "--port", server.port)
    assert refused.exit_code == 1 and "PIONKV_PASSWORD" in refused.output
    monkeypatch.setenv("PIONKV_PASSWORD", "secret")
    assert answer("info", "--port", server.port)["pionkv_version"]
    assert answer("info", "--url", f"redis://127.0.0.1:{server.port}")["pionkv_version"]
