"""kill -9 at random moments: nothing acknowledged is lost, no row is wrong. For long: `make faults`."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis
from faults_killing import KillLoop
from server_process import ServerProcess

MIB = 1 << 20


@pytest.mark.parametrize("durability, rounds", [("everysec", 5), ("always", 2)])
def test_workers_supervisor_and_writers_are_killed(durability, rounds, tmp_path) -> None:
    loop = KillLoop(tmp_path, 7, "--durability", durability)
    loop.run(rounds)
    assert sum(loop.killed.values()) == rounds
    assert loop.tally.counts["done"] > 10 and loop.tally.counts["seen"] > 1000


def taken(folder):
    """Bytes of disk of all pages."""
    return sum(file.stat().st_blocks * 512 for file in (folder / "data/pages").iterdir())


def test_a_kill_in_the_middle_of_a_large_store(tmp_path) -> None:
    """The rows are as they were, and what had arrived takes no room."""
    row, rows = 2 * 1024, 32 * MIB // 2048
    with closing(ServerProcess(tmp_path / "data")) as server:
        server.start()
        with redis.Redis(port=server.port) as client:
            client.execute_command("V.CREATE", "s", row // 2, "VQUANT", "fp16")
            client.execute_command("V.STOREBATCH", "s", 0, 0, 4, b"\1" * (4 * row), "FMT", "F16")
            writer = redis.Connection(port=server.port)
            head = f"*8\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$5\r\n{rows}\r\n"
            writer.send_packed_command([f"{head}${32 * MIB}\r\n".encode(), bytes(20 * MIB)])
            while client.info("stats")["total_net_input_bytes"] < 20 * MIB:
                pass
            assert taken(tmp_path) > 16 * MIB
        server.restart(crash=True)
        writer.disconnect()
        with redis.Redis(port=server.port) as client:
            fetch = ("V.FETCH", "s", 0, "RANGE", 0, 4, "FMT", "RAW")
            assert client.execute_command(*fetch) == b"\1" * (4 * row)
            assert taken(tmp_path) < MIB
            blob = b"\2" * (32 * MIB)
            assert client.execute_command("V.STOREBATCH", "s", 0, 0, rows, blob, "FMT", "F16") == b"OK"
            assert client.execute_command(*fetch) == b"\2" * (4 * row)
        assert server.stop() == 0
