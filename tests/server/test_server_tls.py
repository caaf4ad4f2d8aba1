"""TLS: real clients, large rows both ways, who is let in, and what a wrong certificate is told."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from pionkv.server.cli import build
from typer.testing import CliRunner

DIM = 8192
ROWS = 2048
BYTES = ROWS * DIM * 4
"""64 MiB."""


def context(certificates: Any, pair: Any = None, root: Any = None) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=root or certificates.root)
    if pair is not None:
        found.load_cert_chain(*pair)
    return found


def secured(port: int, with_context: ssl.SSLContext) -> ssl.SSLSocket:
    return with_context.wrap_socket(
        socket.create_connection(("127.0.0.1", port), 30), server_hostname="127.0.0.1"
    )


def client(port: int, certificates: Any, pair: Any = (None, None), **options: Any) -> redis.Redis:
    return redis.Redis(
        port=port, ssl=True, ssl_ca_certs=str(certificates.root), ssl_certfile=pair[0] and str(pair[0]),
        ssl_keyfile=pair[1] and str(pair[1]), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(certificates: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from server_process import ServerProcess

    process = ServerProcess(tmp_path_factory.mktemp("tls") / "data", *certificates.flags())
    process.start()
    yield process
    process.close()


@pytest.fixture
def wire(served: Any, wire_class: Any, certificates: Any) -> Any:
    return wire_class(secured(served.tls_port, context(certificates)))


def test_64_mebibytes_there_and_back(wire: Any) -> None:
    data = np.random.default_rng(7).standard_normal((ROWS, DIM), np.float32).data.cast("B")
    digest = hashlib.sha256(data).digest()
    wire.command("V.CREATE", "big", DIM, "VQUANT", "fp32")
    assert wire.command("V.STOREBATCH", "big", 0, 0, ROWS, data) == "OK"
    for _ in range(2):
        rows = wire.command("V.FETCH", "big", 0, "RANGE", 0, ROWS, "FMT", "RAW")
        assert hashlib.sha256(rows).digest() == digest
    halves = wire.command("V.FETCH", "big", 0, "RANGE", 0, ROWS, "FMT", "F16")
    assert np.array_equal(np.frombuffer(halves, "<f2"), np.frombuffer(data, "<f4").astype("<f2"))
    assert wire.command("SET", "plain", data[: 8 << 20]) == "OK"
    assert bytes(wire.command("GET", "plain")) == bytes(data[: 8 << 20])


def test_bytes_come_one_by_one_and_many_commands_at_once(wire: Any) -> None:
    for byte in b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n":
        wire.send(bytes([byte]))
    wire.expect(b"$5\r\nhello\r\n")
    # One after the other: a TLS socket of Python may not be read and written by two threads at once.
    at_once, times = 4000, 5
    for turn in range(1, times + 1):
        wire.send(b"INCR n\r\n" * at_once)
        assert [wire.reply() for _ in range(at_once)][-1] == turn * at_once


def test_a_peer_that_does_not_read_holds_nothing_up(
    served: Any, wire: Any, wire_class: Any, certificates: Any
) -> None:
    wire.command("V.CREATE", "slow", DIM, "VQUANT", "fp32")
    rows = bytes(256 * DIM * 4)
    assert wire.command("V.STOREBATCH", "slow", 0, 0, 256, rows) == "OK"
    lazy = wire_class(secured(served.tls_port, context(certificates)))
    lazy.send(b"V.FETCH slow 0 RANGE 0 256\r\n" * 20)
    for _ in range(100):
        assert wire.command("PING") == "PONG"
    for _ in range(20):
        assert len(lazy.reply()) == len(rows)
    lazy.send(b"V.FETCH slow 0 RANGE 0 256\r\n" * 20).close()
    assert wire.command("PING") == "PONG"


def test_errors_that_end_a_connection_are_read(wire: Any) -> None:
    wire.send(b"*1\r\n$-5\r\n")
    assert wire.read_to_end().startswith(b"-ERR Protocol error")


def test_redis_py_and_redis_cli(served: Any, certificates: Any) -> None:
    connection = client(served.tls_port, certificates)
    with connection.pipeline() as pipeline:
        assert pipeline.set("k", "v").get("k").execute() == [True, b"v"]
    assert connection.info("server")["tls_port"] == served.tls_port
    assert redis.Redis(port=served.port).get("k") == b"v"
    connection.close()
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed: `make system` installs it where apt is there")
    command = [
        "redis-cli",
        "--tls",
        "--cacert",
        str(certificates.root),
        "-p",
        str(served.tls_port),
        "GET",
        "k",
    ]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "v\n"


def test_who_speaks_no_tls_or_trusts_another_is_turned_away_and_the_server_goes_on(
    served: Any, wire: Any, certificates: Any
) -> None:
    plain = socket.create_connection(("127.0.0.1", served.tls_port), 30)
    plain.sendall(b"PING\r\n")
    assert b"PONG" not in plain.recv(100)
    plain.close()
    for junk in (b"", os.urandom(4096), b"\x16\x03\x01\xff\xff" + os.urandom(100)):
        with socket.create_connection(("127.0.0.1", served.tls_port), 30) as connection:
            connection.sendall(junk)
    with pytest.raises(ssl.SSLCertVerificationError):
        secured(served.tls_port, context(certificates, root=certificates.other_root))
    assert wire.command("PING") == "PONG"


def answers(port: int, with_context: ssl.SSLContext) -> bool:
    """Whether a client is served; with TLS 1.3 it only learns that it is not when it reads."""
    try:
        with secured(port, with_context) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100) == b"+PONG\r\n"
    except OSError:
        return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_clients_that_must_show_a_certificate(start_server: Any, certificates: Any, workers: str) -> None:
    server = start_server(
        *certificates.flags("yes"), "--port", "-1", "--workers", workers, "--metrics-port", "0"
    )
    port = server.port
    for _ in range(4):
        assert not answers(port, context(certificates))
        assert not answers(port, context(certificates, certificates.stranger))
        assert not answers(port, context(certificates, certificates.expired))
        assert answers(port, context(certificates, certificates.client))
    with client(port, certificates, certificates.client) as connection:
        assert connection.info("server")["tcp_port"] == port
    if workers == "2":
        connections = [client(port, certificates, certificates.client) for _ in range(12)]
        served = {connection.info("workers")["worker_id"] for connection in connections}
        for connection in connections:
            connection.close()
        assert served == {0, 1}
    assert server.stop(signal.SIGTERM) == 0


def test_a_certificate_that_may_be_shown(start_server: Any, certificates: Any) -> None:
    port = start_server(*certificates.flags("optional")).tls_port
    assert answers(port, context(certificates)) and answers(port, context(certificates, certificates.client))
    assert not answers(port, context(certificates, certificates.stranger))


def test_the_page_has_the_same_certificate(start_server: Any, certificates: Any) -> None:
    server = start_server(*certificates.flags(), "--http-port", "0", "--metrics-port", "0")
    with redis.Redis(port=server.port) as connection:
        told = connection.info("server")
    for port, path in ((told["http_port"], "/"), (told["metrics_port"], "/metrics")):
        url = f"127.0.0.1:{port}{path}"
        with urllib.request.urlopen(f"https://{url}", timeout=30, context=context(certificates)) as answer:
            assert answer.status == 200
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{url}", timeout=30)


NO_PAIR = "are not a certificate and its private key without a password"
WRONG = [
    ("1", {"tls-cert-file": None, "tls-key-file": None}, "tls_port is 0, but tls_cert_file is not set"),
    ("2", {"tls-cert-file": None, "tls-key-file": None}, "tls_port is 0, but tls_cert_file is not set"),
    ("1", {"tls-key-file": None}, "tls_cert_file is set, but tls_key_file is not"),
    ("1", {"tls-key-file": "gone"}, "tls_key_file gone: No such file or directory"),
    ("1", {"tls-key-file": "another"}, NO_PAIR),
    ("1", {"tls-key-file": "encrypted"}, NO_PAIR),
    ("1", {"tls-cert-file": "junk"}, NO_PAIR),
    ("2", {"tls-cert-file": "junk"}, NO_PAIR),
    ("1", {"tls-auth-clients": "yes"}, "tls_auth_clients is yes, but tls_ca_cert_file is not set"),
    ("1", {"tls-auth-clients": "yes", "tls-ca-cert-file": "junk"}, "holds no certificates"),
    ("1", {"tls-port": -1}, "nothing to listen on"),
]


@pytest.mark.parametrize("workers, changes, text", WRONG)
def test_settings_that_cannot_work_are_one_clear_line(
    certificates: Any, tmp_path: Path, workers: str, changes: dict[str, Any], text: str
) -> None:
    (tmp_path / "junk").write_text("nonsense")
    files = {
        "another": certificates.client[1],
        "encrypted": certificates.encrypted_key,
        "junk": tmp_path / "junk",
    }
    flags = {"tls-cert-file": certificates.server[0], "tls-key-file": certificates.server[1]}
    flags |= {"port": -1, "tls-port": 0, "tls-auth-clients": "no", "workers": workers} | changes
    command = ["serve", "--data-dir", str(tmp_path / "data")]
    for name, value in flags.items():
        command += [] if value is None else [f"--{name}", str(files.get(value, value))]
    done = CliRunner().invoke(build(command), command)
    assert done.exit_code == 1 and text in done.stderr and done.stderr.count("\n") == 1, done.output


@pytest.mark.parametrize("workers", ["1", "2"])
def test_new_certificates_without_a_restart(
    workers: str, start_server: Any, wire_class: Any, certificates: Any, tmp_path: Path
) -> None:
    """SIGHUP: new connections get the new one, those that are there go on, wrong files change nothing."""
    pair = tmp_path / "server.pem", tmp_path / "server.key"

    def put(files: tuple[Path, Path]) -> None:
        for source, target in zip(files, pair, strict=True):
            shutil.copy(source, target)

    def shown(port: int) -> bytes:
        with secured(port, context(certificates)) as connection:
            return connection.getpeercert(binary_form=True) or b""

    put(certificates.server)
    server = start_server(
        *("--workers", workers, "--tls-port", "0", "--tls-auth-clients", "no", "--http-port", "0"),
        *("--tls-cert-file", str(pair[0]), "--tls-key-file", str(pair[1])),
    )
    admin = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    http_port = (
        int(re.search(rb"http_port:(\d+)", admin.command("INFO", "server"))[1]) if workers == "1" else 0
    )
    before = shown(server.tls_port)
    there = wire_class(secured(server.tls_port, context(certificates)))
    assert there.command("SET", "k", "v") == "OK"
    pair[1].write_text("no key")
    os.kill(server.pid, signal.SIGHUP)
    while "not a certificate and its private key" not in server.errors.read_text():
        pass
    assert shown(server.tls_port) == before
    put(certificates.client)
    os.kill(server.pid, signal.SIGHUP)
    found = before
    while found == before:
        try:
            found = shown(server.tls_port)
        except (ConnectionError, ssl.SSLError):
            continue  # of several workers one after the other is replaced
    assert found == ssl.PEM_cert_to_DER_cert(certificates.client[0].read_text())
    if workers == "1":
        assert there.command("GET", "k") == b"v"
        while shown(http_port) != found:
            pass
    assert server.stop() == 0
