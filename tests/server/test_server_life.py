"""A server's life: start, graceful stop, crash, and what is there after."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

DIM, COUNT, LAYERS = 64, 3_000, 3
ROWS = np.random.default_rng(4).standard_normal((COUNT, DIM), np.float32)
FORMATS = {"n": "fp16", "q": "mlx4g32"}


@pytest.fixture
def connect(wire_class):
    return lambda server: wire_class(socket.create_connection(("127.0.0.1", server.port)))


def fill(wire):
    for namespace, format in FORMATS.items():
        assert wire.command("KV.PREFIX.REGISTER", namespace, DIM, format, "PREFILL_MS", 70) == "OK"
        for layer in range(LAYERS):
            for side in "kv":
                blob = (ROWS + layer).tobytes()
                assert wire.command("V.STOREBATCH", f"{namespace}_p{side}", layer, 0, COUNT, blob) == "OK"
    wire.command("V.CREATE", "single", "SCHEMA", 2, "fmt=int8,dim=64", "fmt=fp32,dim=64")
    wire.command("V.STOREBATCH", "single", 0, 0, 10, ROWS[:10].tobytes())
    wire.command("V.STOREBATCH", "single", 0, 10, COUNT, ROWS.tobytes())
    wire.command("V.STOREBATCH", "single", 0, 5, 7, ROWS[:7].tobytes())
    wire.command("SSM.PREFIX.STORE", "hybrid", 3, ROWS[:1000].tobytes())
    assert wire.command("V.SNAPSHOT", "single") == 1
    wire.command("V.STOREBATCH", "single", 1, 0, 5, ROWS[:5].tobytes())


def everything(wire):
    """All that clients can see."""
    found = [wire.command("KV.PREFIX.LOOKUP", namespace) for namespace in (*FORMATS, "hybrid", "nosuch")]
    for namespace in FORMATS:
        found += wire.command("V.FETCHALL", f"{namespace}_pk", f"{namespace}_pv", 0, COUNT, "FMT", "RAW")
    found.append(wire.command("V.FETCH", "single", 0, "RANGE", 0, COUNT + 10, "FMT", "RAW"))
    found.append(wire.command("V.INFO", "single"))
    found.append(wire.command("SSM.PREFIX.FETCH", "hybrid", 3))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_everything_acknowledged_is_there_after(number, server_process, connect) -> None:
    wire = connect(server_process)
    fill(wire)
    before = everything(wire)
    assert before[:4] == ["HIT", "HIT", "HIT", "MISS"]
    assert server_process.stop(number) == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    server_process.start()
    wire = connect(server_process)
    assert everything(wire) == before
    assert wire.command("V.RESTORE", "single", 1) == "OK"
    assert wire.command("V.FETCH", "single", 1, 0) is None
    wire.command("V.STOREBATCH", "n_pk", 0, COUNT, 1, ROWS[:1].tobytes())
    assert wire.command("V.FETCH", "n_pk", 0, COUNT, "FMT", "RAW") == ROWS[:1].astype(np.float16).tobytes()


def test_killed_in_the_middle_of_writes(server_process, connect) -> None:
    """What was acknowledged is there, and what was not is not there in part."""
    wire = connect(server_process)
    wire.command("V.CREATE", "s", DIM, "VQUANT", "int8")
    acknowledged = 0
    reached = threading.Event()

    def write():
        nonlocal acknowledged
        try:
            while wire.command("V.STOREBATCH", "s", 0, acknowledged * COUNT, COUNT, ROWS.tobytes()) == "OK":
                acknowledged += 1
                if acknowledged == 20:
                    reached.set()
        except (OSError, EOFError):
            return

    writer = threading.Thread(target=write)
    writer.start()
    assert reached.wait(60)
    server_process.kill()
    writer.join()
    server_process.start()
    wire = connect(server_process)
    info = dict(line.split(b":") for line in wire.command("V.INFO", "s").splitlines())
    rows = int(info[b"layer_0_tokens"])
    assert rows in (acknowledged * COUNT, (acknowledged + 1) * COUNT)
    first = wire.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", "RAW")
    for start in range(0, rows, COUNT):
        assert wire.command("V.FETCH", "s", 0, "RANGE", start, start + COUNT, "FMT", "RAW") == first


def test_a_graceful_stop_finishes_what_is_in_flight(server_process, connect) -> None:
    wire, idle, reader = (connect(server_process) for _ in range(3))
    idle.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    blob = ROWS.tobytes()
    wire.send(
        b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$4\r\n3000\r\n$%d\r\n" % len(blob)
    )
    wire.send(blob[:100_000])
    while received(idle) < 100_000:
        pass
    stopped = []
    stopper = threading.Thread(target=lambda: stopped.append(server_process.stop()))
    stopper.start()
    assert idle.read_to_end() == b""
    with pytest.raises(OSError):
        connect(server_process)
    assert stopper.is_alive()
    wire.send(blob[100_000:] + b"\r\n")
    assert wire.read_to_end() == b"+OK\r\n"
    stopper.join()
    assert stopped == [0]
    server_process.start()
    wire = connect(server_process)
    assert wire.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", "RAW") == blob
    assert reader.read_to_end() == b""


def received(wire):
    """Bytes that the server has received from all clients."""
    lines = wire.command("INFO", "stats").splitlines()
    return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"total_net_input_bytes:"))


def test_a_second_signal_hurries(server_process, connect) -> None:
    wire, idle = connect(server_process), connect(server_process)
    idle.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    wire.send(b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$4\r\n3000\r\n$768000\r\nabc")
    while idle.command("INFO", "clients").find(b"connected_clients:2") < 0:
        pass
    os.kill(server_process.pid, signal.SIGTERM)
    assert idle.read_to_end() == b""
    assert server_process.stop(signal.SIGTERM) == 0


def test_the_time_for_commands_in_flight_ends(start_server, connect) -> None:
    server = start_server("--stop-seconds", "0.2")
    wire = connect(server)
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    wire.send(b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$4\r\n3000\r\n$768000\r\nabc")
    assert server.stop() == 0
    assert "commands in flight cut off" in server.errors.read_text()


def run(*args):
    command = [sys.executable, "-m", "pionkv.server", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_taken_port_is_an_error_and_not_a_traceback(server_process, tmp_path) -> None:
    found = run("--port", str(server_process.port), "--data-dir", str(tmp_path / "other"))
    assert found.returncode == 1 and found.stdout == ""
    assert "pionkv: " in found.stderr and "Traceback" not in found.stderr


def test_a_data_directory_that_cannot_be_used(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    found = run("--port", "0", "--data-dir", str(tmp_path / "file"))
    assert found.returncode == 1 and "Traceback" not in found.stderr and "pionkv: " in found.stderr


def test_the_data_directory_is_private(server_process) -> None:
    assert server_process.data_dir.stat().st_mode & 0o077 == 0
