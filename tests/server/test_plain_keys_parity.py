"""Plain keys answer as redis-server does: the same random commands to both, and the replies compared.

Replies are compared byte for byte. Exceptions: what has no order (fields, names) is sorted; times are
compared with a tolerance; and of what chance chooses only its presence counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pionkv.protocol.errors import CommandError
from pionkv.protocol.spec import CommandSpec

sys.path.insert(0, str(Path(__file__).parent))

import plain_commands as commands  # noqa: E402
from redis_peer import Recorder, RedisServer  # noqa: E402

EXAMPLES = 40
COMMANDS_EACH = 25
SHARED = (1 << 31) - 1
SLACK = {b"TTL": 1, b"EXPIRETIME": 1, b"PTTL": 3000, b"PEXPIRETIME": 3000, b"IDLETIME": 2}
"""Seconds or milliseconds by which two answers about time may differ."""
UNORDERED = {b"HKEYS", b"HVALS", b"KEYS"}
SCANS = {b"SCAN": 1, b"HSCAN": 2, b"ZSCAN": 2}
"""Items of a scan that belong together."""

Ask = Callable[[Sequence[bytes | str]], tuple[bytes, Any]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with closing(RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(params=[2, 3])
def both(request: pytest.FixtureRequest, redis: RedisServer, server: Any) -> Iterator[tuple[Ask, Ask]]:
    """A connection to our server, and one to the real one."""
    ours = Recorder(server.connect().socket, request.param)
    theirs = Recorder(redis.connect(), request.param)
    with closing(theirs):
        yield ours.ask, theirs.ask


def assert_alike(command: Sequence[bytes], mine: Any, real: Any) -> None:
    """Two replies to the same command are the same, as far as they can be."""
    name = command[1] if command[0] == b"OBJECT" else command[0]
    if same(mine, real):
        return
    if name in SLACK and isinstance(mine, int) and isinstance(real, int):
        assert abs(mine - real) <= SLACK[name] and min(mine, real) >= 0, command
    elif name in UNORDERED and isinstance(mine, list) and isinstance(real, list):
        assert sorted(mine) == sorted(real), command
    elif name == b"REFCOUNT":
        # Redis shares the objects of small integers; here nothing is shared.
        assert (mine, real) == (1, SHARED), command
    elif name == b"HGETALL":
        assert _as_map(mine) == _as_map(real), command
    elif name in SCANS and isinstance(mine, list) and isinstance(real, list):
        assert mine[0] == real[0], command
        assert _groups(mine[1], SCANS[name]) == _groups(real[1], SCANS[name]), command
    else:
        assert name == b"RANDOMKEY" and (mine is None) == (real is None), (command, mine, real)


def same(mine: Any, real: Any) -> bool:
    """Whether two values are equal and of the same reply type."""
    if type(mine) is not type(real):
        return False
    if isinstance(mine, list):
        return len(mine) == len(real) and all(map(same, mine, real))
    return str(mine) == str(real) if isinstance(mine, CommandError) else mine == real


def _as_map(value: Any) -> Any:
    return dict(_groups(value, 2)) if isinstance(value, list) else value


def _groups(items: list[bytes], size: int) -> list[tuple[bytes, ...]]:
    return sorted(zip(*[iter(items)] * size, strict=True))


def run_on_both(both: tuple[Ask, Ask], script: Sequence[commands.Command]) -> None:
    """Send every command to both servers; the replies within that to EXEC are compared one by one."""
    ours, theirs = both
    for command in (b"DISCARD",), (b"UNWATCH",), (b"FLUSHALL",):
        ours(command)
        theirs(command)
    gathered: list[commands.Command] = []
    for command in script:
        mine, real = ours(command), theirs(command)
        if mine[0] == real[0]:
            gathered += [command] if mine[1] == "QUEUED" else []
        elif command[0] == b"EXEC" and isinstance(mine[1], list) and isinstance(real[1], list):
            assert len(mine[1]) == len(real[1]) == len(gathered)
            for inner, answer, expected in zip(gathered, mine[1], real[1], strict=True):
                assert_alike(inner, answer, expected)
        else:
            assert_alike(command, mine[1], real[1])
        if command[0] in (b"EXEC", b"DISCARD"):
            gathered.clear()


MIXES = {
    "strings": commands.STRINGS * 2 + commands.GENERIC,
    "hashes": commands.HASHES * 2 + commands.GENERIC,
    "sorted sets": commands.ZSETS * 2 + commands.GENERIC,
    "by bytes": commands.LEX,
    "all types": commands.STRINGS + commands.HASHES + commands.ZSETS + commands.GENERIC,
    "transactions": commands.STRINGS + commands.HASHES + commands.TRANSACTIONS * 6,
}


@pytest.mark.parametrize("mix", MIXES)
def test_random_commands_are_answered_alike(both: tuple[Ask, Ask], mix: str) -> None:
    scripts = st.lists(st.one_of(MIXES[mix]), max_size=COMMANDS_EACH)

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(scripts)
    def check(script: list[commands.Command]) -> None:
        run_on_both(both, script)

    check()


def test_a_score_of_minus_zero_is_zero(both: tuple[Ask, Ask]) -> None:
    """As in sets that Redis keeps small; the sign is in the reply to who adds the member, nowhere else."""
    lines = (
        "ZADD b -0 m", "ZSCORE b m", "ZADD b INCR -0 n", "ZINCRBY b -0 o", "ZMSCORE b n o",
        "ZINCRBY b -0 m", "ZRANGE b 0 -1 WITHSCORES", "ZRANGEBYSCORE b -0 0 WITHSCORES", "ZSCAN b 0",
        "ZPOPMAX b", "ZPOPMIN b",
    )  # fmt: skip
    run_on_both(both, [tuple(line.encode().split()) for line in lines])


@pytest.mark.parametrize("name", [b"ZPOPMIN", b"ZPOPMAX"])
def test_a_pop_of_no_members_looks_at_the_type(both: tuple[Ask, Ask], name: bytes) -> None:
    run_on_both(both, [(b"SET", b"k", b"v"), (name, b"k", b"0"), (name, b"absent", b"0")])


@pytest.mark.parametrize("spec", commands.specs(), ids=lambda spec: spec.name)
def test_the_command_table_says_what_redis_says(redis: RedisServer, spec: CommandSpec) -> None:
    with closing(Recorder(redis.connect(), 2)) as theirs:
        name, arity, flags, *positions = theirs.ask((b"COMMAND", b"INFO", spec.name.encode()))[1][0][:6]
    assert (name.decode(), arity) == (spec.name.lower(), spec.arity)
    assert tuple(positions) == spec.keys
    assert set(flags) - {"allow_busy"} == set(spec.flags)
