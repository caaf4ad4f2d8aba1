"""The Redis client and the redis-cli that are installed here; `make conformance` runs all the others."""

from __future__ import annotations

import json
import sys

import check_redis_clients
import check_tools
import peers
import pytest

GROUPS = (
    "connection password reconnect strings big_value hashes sorted_sets scan pipelines sessions prefixes "
    "states_and_receipt threads asyncio reset"
)
QUICK = (
    check_tools.commands,
    check_tools.help_pages,
    check_tools.scan,
    check_tools.big_keys,
    check_tools.resp3,
    check_tools.mass_insertion,
)


@pytest.mark.parametrize("protocol", check_redis_clients.PROTOCOLS, ids=check_redis_clients.PROTOCOLS.get)
def test_redis_py(protocol, start_server) -> None:
    server, locked = start_server(), start_server("--password", check_redis_clients.PASSWORD)
    ports = (str(server.port), str(locked.port))
    printed = peers.run_driver(
        sys.executable, "redis_client", "redis", *ports, str(protocol), *GROUPS.split(), timeout=280
    )
    result = json.loads(printed)
    assert not result["failed"], "\n".join(result["failed"].values())
    assert result["passed"] == GROUPS.split()


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
def test_redis_cli(check, shared_server) -> None:
    redis_cli = peers.program("redis-cli")
    assert redis_cli, "redis-cli has to be installed (package redis-tools)"
    assert check(redis_cli, shared_server)
