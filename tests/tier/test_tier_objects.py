"""A bucket, served by moto, and a folder as the tier of two servers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefix_rows import expected, publish, whole
from tier_clients import Peer, until

FLAGS = ("--tier-check", "0", "--tier-deadline", "5000")
LOGIN = "region=us-east-1&access_key_id=a&secret_access_key=b"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An S3 server of its own process, and a bucket in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{endpoint}/prefixes", method="PUT")
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < end and server.poll() is None
            time.sleep(0.05)
    yield f"s3://prefixes/deep?endpoint={endpoint}&{LOGIN}"
    server.kill()
    server.wait(30)


@pytest.fixture(params=["bucket", "folder"])
def url(request: Any, tmp_path: Path) -> str:
    return request.getfixturevalue("bucket") if request.param == "bucket" else f"file://{tmp_path}/tier"


def test_two_servers_share_objects(url, start_server, tmp_path) -> None:
    flags = ("--tier", url, "--tier-prefix", f"{tmp_path.name}/", *FLAGS)
    one, other = Peer(start_server(*flags)), Peer(start_server(*flags))
    ids = np.arange(1, 1025, dtype="<u4")
    publish(one, "n", 1, 0, 1024, "TOKENS", ids.tobytes())
    one.command("SSM.PREFIX.STORE", "n", 3, b"state")
    one.written("n")
    asked = np.concatenate([ids[:700], ids[:300]]).astype("<u4")
    assert other.command("KV.PREFIX.MATCH", asked.tobytes())[:2] == [b"n", 700]
    assert whole(other, "n", 1024) == expected((1, 0, 1024))
    assert other.command("SSM.PREFIX.FETCH", "n", 3) == b"state"

    one.command("KV.PREFIX.TRUNCATE", "n", 4)
    publish(one, "n", 2, 4, 9)
    one.written("n")
    assert other.lookup("n") == "HIT" and whole(other, "n", 9) == expected((1, 0, 4), (2, 4, 9))

    claimed = one.connect()
    assert claimed.execute_command("KV.PREFIX.CLAIM", "m", 60_000) == b"CLAIMED"
    assert other.command("KV.PREFIX.CLAIM", "m", 60_000) == b"HELD"
    claimed.close()
    until(lambda: other.command("KV.PREFIX.CLAIM", "m", 60_000) == b"CLAIMED", "the claim")

    assert other.command("KV.PREFIX.DROP", "n") == 1
    assert one.lookup("n") == "MISS"
    publish(one, "short", 3, 0, 2)
    one.command("KV.PREFIX.EXPIRE", "short", 1)
    assert other.lookup("absent") == "MISS"
    until(lambda: other.lookup("short") == "MISS" and one.lookup("short") == "MISS", "its end")


def test_a_bucket_that_is_not_there_costs_nothing(start_server) -> None:
    address = f"s3://nobody?endpoint=http://127.0.0.1:9&{LOGIN}"
    peer = Peer(start_server("--tier", address, "--tier-deadline", "500"))
    publish(peer, "n", 1, 0, 3)
    assert peer.lookup("n") == "HIT" and peer.lookup("absent") == "MISS"
    assert "secret" not in str(peer.tier()) and peer.tier()["tier_state"].startswith("away")


def test_an_option_that_is_not_known_ends_the_start(start_server) -> None:
    with pytest.raises(AssertionError, match="pionkv: "):
        start_server("--tier", "s3://bucket?colour=red")
