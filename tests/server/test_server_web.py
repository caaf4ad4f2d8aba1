"""The HTTP ports: metrics that add up, a page that shows what is stored, and who may look."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pionkv.server.web.families import FAMILIES
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "pionkv.json"
CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=6000", "--dump-dom",
)  # fmt: skip


def get(port: int, path: str, user: str | None = None, host: str | None = None) -> tuple[int, str, Any]:
    """Status, body and headers of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def metrics(text: str) -> dict[str, float]:
    """Every sample, by its name and labels."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ports(wire: Any) -> tuple[int, int]:
    text = wire.command("INFO", "server").decode()
    return tuple(int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("http_port", "metrics_port"))  # type: ignore[index,return-value]


def store(wire: Any, name: str, rows: int = 8) -> None:
    wire.command("KV.PREFIX.REGISTER", name, 64, "fp16", "PREFILL_MS", 2000)
    blob = np.ones((rows, 64), np.float32).tobytes()
    for side in ("pk", "pv"):
        assert wire.command("V.STOREBATCH", f"{name}_{side}", 0, 0, rows, blob) == "OK"


@pytest.fixture
def site(start_local: Any) -> Any:
    return start_local(http_port=0, metrics_port=0)


def test_metrics_are_those_of_the_commands_that_ran(site: Any) -> None:
    wire = site.connect()
    page, scrape = ports(wire)
    store(wire, "doc")
    for name in ("doc", "doc", "nobody", "empty"):
        wire.command("KV.PREFIX.REGISTER", "empty", 64, "fp16")
        wire.command("KV.PREFIX.LOOKUP", name)
    wire.command("V.FETCH", "doc_pk", 0, "RANGE", 0, 8, "FMT", "F16")
    for end in ("PUBLISH", "ABORT"):
        txn = wire.command("KV.PREFIX.BEGIN", f"{end}ed", "KV", 64, "fp16", "LAYERS", 1)
        for side in ("pk", "pv"):
            place = (f"{end}ed_{side}", 0, 0, 1)
            assert wire.command("V.STOREBATCH", *place, bytes(256), "TXN", txn) == "OK"
        wire.command(f"KV.PREFIX.{end}", txn)
    assert wire.command("KV.PREFIX.MATCH", np.arange(5, dtype="<u4").tobytes()) is None
    wire.command("NOSUCH")
    while (found := metrics(get(scrape, "/metrics")[1])).get("pionkv_misses_total,reason=absent", 0) < 1:
        pass
    assert found["pionkv_hits_total"] == 2
    assert found["pionkv_misses_total,reason=incomplete"] == 1
    assert found["pionkv_misses_total,reason=no match"] == 1
    assert found["pionkv_row_bytes_in_total,format=fp16"] == 2 * 8 * 64 * 4 + 4 * 64 * 4
    counted = [found[f"pionkv_transactions_total,what={what}"] for what in ("begun", "published", "ended")]
    assert counted == [2, 1, 1]
    assert found["pionkv_row_bytes_out_total,format=fp16"] == 8 * 64 * 2
    assert found["pionkv_restores_total"] == 1 and found["pionkv_prefill_saved_seconds_total"] == 2
    assert found["pionkv_error_replies_total"] == 1
    assert found["pionkv_command_duration_seconds_count,command=kv.prefix.lookup"] == 4
    assert found["pionkv_received_bytes_total,lane=tcp"] > 2 * 8 * 64 * 4
    buckets = [value for name, value in found.items() if name.startswith("pionkv_command_duration_seconds_b")]
    assert buckets and "pionkv_command_duration_seconds_bucket,command=v.fetch,le=+Inf" in found
    assert metrics(get(page, "/metrics")[1]).keys() == found.keys()
    assert get(scrape, "/")[0] == get(scrape, "/api/overview")[0] == 404


def test_metrics_of_workers_are_added_up(start_server: Any, wire_class: Any) -> None:
    server = start_server("--workers", "2", "--metrics-port", "0")
    wires = [wire_class(socket.create_connection(("127.0.0.1", server.port))) for _ in range(12)]
    assert {wire.command("PION.STATS")[1] for wire in wires} == {0, 1}
    scrape = next(port for wire in wires if (port := ports(wire)[1]))
    for wire in wires:
        wire.command("ECHO", "x")
    name = "pionkv_command_duration_seconds_count,command=echo"
    while (found := metrics(get(scrape, "/metrics")[1])).get(name, 0) < 12:
        pass
    assert found[name] == 12 and found["pionkv_workers"] == 2 and found["pionkv_clients"] == 12


def test_the_dashboard_names_metrics_that_there_are(site: Any) -> None:
    wire = site.connect()
    store(wire, "doc")
    wire.command("KV.PREFIX.LOOKUP", "nobody")
    families = {
        name
        for family in text_string_to_metric_families(get(ports(wire)[1], "/metrics")[1])
        for name in (family.name, family.name + "_total", family.name + "_bucket", family.name + "_count")
    }
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    named = {name for query in queries for name in re.findall(r"pionkv_\w+", query)}
    assert len(queries) >= 10 and named - families == set()


def test_every_declared_metric_is_exported(start_local: Any, tmp_path: Path) -> None:
    server = start_local(http_port=0, metrics_port=0, tier=f"file://{tmp_path / 'tier'}")
    wire = server.connect()
    store(wire, "doc")
    text = get(ports(wire)[1], "/metrics")[1]
    exported = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    }
    assert exported == {family.exported(name) for name, family in FAMILIES.items()}


def test_prefixes_are_a_tree_with_all_that_is_known(site: Any) -> None:
    wire = site.connect()
    store(wire, "doc")
    wire.command("KV.PREFIX.FORK", "doc", "doc:chat", 4)
    wire.command("KV.PREFIX.LOOKUP", "gone")
    page, _ = ports(wire)
    found = {prefix["name"]: prefix for prefix in json.loads(get(page, "/api/prefixes")[1])["prefixes"]}
    assert found.keys() == {"doc", "doc:chat"}
    assert found["doc"]["parent"] is None and found["doc:chat"]["parent"] == "doc"
    assert found["doc"]["tokens"] == 8 and found["doc:chat"]["tokens"] == 4
    assert found["doc"]["formats"] == {"k": [["fp16", 1]], "v": [["fp16", 1]]}
    while not (missed := json.loads(get(page, "/api/misses")[1])):
        pass
    assert [(miss["namespace"], miss["reason"], miss["count"]) for miss in missed] == [("gone", "absent", 1)]
    overview = json.loads(get(page, "/api/overview")[1])
    assert overview["misses"] == 1 and overview["namespaces"] == 2
    assert {one["command"]: one["calls"] for one in overview["latency"]}["V.STOREBATCH"] == 2


def test_the_page_shows_names_as_text(site: Any) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: `make system` installs it where apt is there")
    wire = site.connect()
    store(wire, "<b>doc</b>")
    url = f"http://127.0.0.1:{ports(wire)[0]}/"
    done = subprocess.run(
        ["chromium", *CHROMIUM, f"--user-data-dir={site.settings.data_dir}/browser", url],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "&lt;b&gt;doc&lt;/b&gt;" in done.stdout and "<b>doc</b>" not in done.stdout
    assert "fp16 × 1" in done.stdout and "No answer" not in done.stdout


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/api/overview", "/api/prefixes", "/api/misses", "/app.js"]
)
def test_with_a_password_nobody_looks_without(start_local: Any, path: str) -> None:
    server = start_local(http_port=0, password="secret")
    wire = server.connect()
    wire.command("AUTH", "secret")
    page, _ = ports(wire)
    status, body, headers = get(page, path)
    assert status == 401 and "password" in body and headers["WWW-Authenticate"].startswith("Basic ")
    assert get(page, path, "default:wrong")[0] == get(page, path, "nobody:secret")[0] == 401
    assert get(page, path, "default:secret")[0] == get(page, path, ":secret")[0] == 200
    assert get(page, "/healthz")[:2] == (200, "ok\n")


def test_a_user_sees_what_its_patterns_let_it_read(start_local: Any) -> None:
    server = start_local(http_port=0, password="secret")
    wire = server.connect()
    wire.command("AUTH", "secret")
    for name in ("a:doc", "b:doc"):
        store(wire, name)
        wire.command("KV.PREFIX.LOOKUP", name + "x")
    wire.command("ACL", "SETUSER", "ann", "on", ">pw", "~a:*", "+@all")
    wire.command("ACL", "SETUSER", "bob", "on", ">pw", "~b:*", "+get")
    page, _ = ports(wire)
    names = [prefix["name"] for prefix in json.loads(get(page, "/api/prefixes", "ann:pw")[1])["prefixes"]]
    assert names == ["a:doc"]
    while len(json.loads(get(page, "/api/misses", ":secret")[1])) < 2:
        pass
    assert [m["namespace"] for m in json.loads(get(page, "/api/misses", "ann:pw")[1])] == ["a:docx"]
    status, body, _ = get(page, "/api/prefixes", "bob:pw")
    assert status == 403 and "INFO" in body


def test_without_a_password_only_this_machine_looks_and_by_its_own_name(site: Any) -> None:
    page, _ = ports(site.connect())
    for host in ("localhost", "127.0.0.1:80", "[::1]:5"):
        assert get(page, "/api/prefixes", host=host)[0] == 200
    for host in ("evil.example", "10.0.0.1", "localhost.evil.example"):
        assert get(page, "/api/prefixes", host=host)[0] == 403


def test_answers_are_read_only_and_say_where_they_may_be_shown(site: Any) -> None:
    page, _ = ports(site.connect())
    status, _, headers = get(page, "/")
    assert status == 200 and headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Server"] == "pionkv"
    assert get(page, "/../../etc/passwd")[0] == get(page, "/static/app.js")[0] == 404
    request = urllib.request.Request(f"http://127.0.0.1:{page}/api/prefixes", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=30)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_taken_is_an_error_that_names_it(site: Any, tmp_path: Path, workers: str) -> None:
    page, _ = ports(site.connect())
    command = [sys.executable, "-m", "pionkv.server", "--port", "0", "--data-dir", str(tmp_path / "other")]
    command += ["--http-port", str(page), "--workers", workers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1:{page}" in done.stderr
