"""Users: what they may run, on which names, and how that reaches every connection, process and restart."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError
from pionkv.protocol.table import COMMANDS
from pionkv.server.acl.categories import CATEGORIES
from pionkv.server.acl.user import RuleError, User, hash_of

DIM = 32
ROWS = bytes(4 * DIM * 4)
KEY = "NOPERM No permissions to access a key"


def refused(answer: Any) -> str:
    assert isinstance(answer, CommandError), answer
    return str(answer)


def login(server: Any, name: str, *rules: str, protocol: int = 2) -> Any:
    """A client that is a user with a password and these rules."""
    admin, wire = server.connect(), server.connect(protocol)
    assert admin.command("ACL", "SETUSER", name, "reset", "on", ">pw", *rules) == "OK"
    assert wire.command("AUTH", name, "pw") == "OK"
    return wire


@pytest.fixture
def team(server: Any) -> Any:
    """Somebody who may do everything, but only on names of team 1."""
    return login(server, "alice", "~team1:*", "+@all", "&team1:*")


@pytest.fixture
def filled(wire: Any) -> Any:
    """A prefix, a single session, a state and a plain key for each of two teams."""
    for name in ("team1:x", "team2:x"):
        wire.command("KV.PREFIX.REGISTER", name, DIM, "fp32")
        for side in ("_pk", "_pv"):
            assert wire.command("V.STOREBATCH", name + side, 0, 0, 4, ROWS) == "OK"
        wire.command("V.CREATE", name + ":alone", DIM, "VQUANT", "fp32")
        wire.command("V.STOREBATCH", name + ":alone", 0, 0, 4, ROWS)
        wire.command("SSM.PREFIX.STORE", name, 0, b"state")
        wire.command("SET", name, "v")
        wire.command("HSET", name + ":h", "f", "v")
        wire.command("ZADD", name + ":z", 1, "m")
    return wire


LINES = [
    ("KV.PREFIX.LOOKUP", "{}"),
    ("KV.PREFIX.REGISTER", "{}", 32, "fp32"),
    ("V.FETCH", "{}_pk", 0, "RANGE", 0, 4),
    ("V.FETCH", "{}:alone", 0, 0),
    ("V.FETCHALL", "{}_pk", "{}_pv", 0, 4),
    ("V.MAP", "{}_pk", 0, 4),
    ("V.INFO", "{}_pv"),
    ("V.STOREBATCH", "{}_pk", 0, 0, 4, ROWS),
    ("V.SNAPSHOT", "{}_pk"),
    ("SSM.PREFIX.FETCH", "{}", 0),
    ("GET", "{}"),
    ("MSET", "{}", "v"),
    ("HGETALL", "{}:h"),
    ("ZRANGE", "{}:z", 0, -1),
    ("OBJECT", "ENCODING", "{}"),
    ("RENAME", "{}:h", "{}:h"),
    ("KV.PREFIX.DROP", "{}"),
    ("V.DROP", "{}:alone"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line[0]))
def test_a_name_must_match_whatever_the_command(line: Any, team: Any, filled: Any) -> None:
    def words(name: str) -> list[Any]:
        return [word.format(name) if isinstance(word, str) else word for word in line]

    assert refused(team.command(*words("team2:x"))) == KEY
    assert not isinstance(team.command(*words("team1:x")), CommandError)
    assert filled.command("KV.PREFIX.LOOKUP", "team2:x") == "HIT"


def test_every_name_of_a_line_must_match(team: Any, filled: Any) -> None:
    for line in (
        ("DEL", "team1:x", "team2:x"),
        ("MSET", "team1:x", "v", "team2:x", "v"),
        ("COPY", "team2:x", "team1:x:copy"),
        ("V.FETCHALL", "team1:x_pk", "team2:x_pv", 0, 4),
        ("KV.PREFIX.DROP", "team1:x", "team2:x"),
        ("WATCH", "team2:x"),
        ("FLUSHALL",),
    ):
        assert refused(team.command(*line)) == KEY
    assert filled.command("GET", "team1:x") == b"v"


def test_a_large_argument_is_refused_before_anything_is_begun(team: Any, filled: Any) -> None:
    before = filled.command("INFO", "pion")
    filled.command("V.CREATE", "team2:new", 8192)
    blob = bytes(8192 * 4 * 8)
    assert refused(team.command("V.STOREBATCH", "team2:new", 0, 0, 8, blob)) == KEY
    assert refused(team.command("SET", "team2:big", bytes(1 << 20))) == KEY
    assert filled.command("EXISTS", "team2:big") == 0
    assert before.count(b"pages:") == 1 and team.command("PING") == "PONG"


@pytest.mark.parametrize("protocol", [2, 3])
def test_listings_leave_out_what_may_not_be_read(server: Any, filled: Any, protocol: int) -> None:
    bob = login(server, "bob", "~team2:*", "+@all", protocol=protocol)
    mine = {b"team2:x", b"team2:x:h", b"team2:x:z"}
    assert set(bob.command("KEYS", "*")) == mine
    assert set(bob.command("SCAN", 0, "COUNT", 100)[1]) == mine
    assert {bob.command("RANDOMKEY") for _ in range(20)} <= mine
    bob.command("MULTI")
    bob.command("KEYS", "*")
    assert set(bob.command("EXEC")[0]) == mine
    assert len(filled.command("KEYS", "*")) == 6


def test_the_longest_match_is_the_longest_that_may_be_read(team: Any, wire: Any) -> None:
    """That somebody else has a longer one must not even be told by a miss."""
    ids = list(range(1, 201))
    for name, count in (("team1:short", 70), ("team2:long", 200)):
        table = b"".join(token.to_bytes(8, "little") for token in ids[:count])
        wire.command("KV.PREFIX.REGISTER", name, DIM, "fp32", "BLOCKS", 1, count, table)
        for side in ("_pk", "_pv"):
            assert wire.command("V.STOREBATCH", name + side, 0, 0, count, bytes(count * DIM * 4)) == "OK"
    asked = b"".join(token.to_bytes(4, "little") for token in ids)
    assert wire.command("KV.PREFIX.MATCH", asked)[:2] == [b"team2:long", 200]
    assert team.command("KV.PREFIX.MATCH", asked)[:2] == [b"team1:short", 70]
    wire.command("KV.PREFIX.DROP", "team1:short")
    assert team.command("KV.PREFIX.MATCH", asked) is None


def test_reading_alone(server: Any, filled: Any) -> None:
    reader = login(server, "reader", "%R~team1:*", "%RW~team1:own", "+@all")
    assert reader.command("GET", "team1:x") == b"v"
    assert reader.command("V.FETCH", "team1:x_pk", 0, 0) == ROWS[: DIM * 4]
    assert refused(reader.command("SET", "team1:x", "w")) == KEY
    assert refused(reader.command("V.STOREBATCH", "team1:x_pk", 0, 0, 4, ROWS)) == KEY
    assert reader.command("SET", "team1:own", "w") == "OK"


def test_commands_and_categories(server: Any, filled: Any) -> None:
    user = login(server, "narrow", "allkeys", "+@kv", "-kv.prefix.drop", "+client|id", "+get")
    assert user.command("V.FETCH", "team1:x_pk", 0, 0) and user.command("GET", "team1:x") == b"v"
    assert user.command("CLIENT", "ID") > 0
    for line in (("KV.PREFIX.DROP", "team1:x"), ("SET", "k", "v"), ("PING",)):
        name = line[0].lower()
        text = f"NOPERM User narrow has no permissions to run the '{name}' command"
        assert refused(user.command(*line)) == text
    assert "'client|list'" in refused(user.command("CLIENT", "LIST"))


def test_channels(server: Any, team: Any) -> None:
    no = "NOPERM No permissions to access a channel"
    assert refused(team.command("SUBSCRIBE", "team1:a", "__keyevent@0__:drop")) == no
    assert refused(team.command("PSUBSCRIBE", "*")) == no
    assert refused(team.command("PUBLISH", "team2:a", "m")) == no
    assert team.command("PUBLISH", "team1:a", "m") == 0
    team.send(b"PSUBSCRIBE team1:*\r\n").expect(b"*3\r\n$10\r\npsubscribe\r\n$7\r\nteam1:*\r\n:1\r\n")


def test_a_transaction_is_checked_as_it_is_gathered(team: Any, filled: Any) -> None:
    team.command("MULTI")
    assert team.command("SET", "team1:x", "w") == "QUEUED"
    assert refused(team.command("SET", "team2:x", "w")) == KEY
    assert refused(team.command("EXEC")).startswith("EXECABORT")
    assert filled.command("GET", "team1:x") == b"v"


def test_passwords(server: Any, wire: Any) -> None:
    def enters(password: str) -> bool:
        return server.connect().command("AUTH", "p", password) == "OK"

    wire.command("ACL", "SETUSER", "p", ">one", f"#{hash_of(b'two')}")
    assert not enters("one")
    wire.command("ACL", "SETUSER", "p", "on")
    assert enters("one") and enters("two") and not enters("three")
    wire.command("ACL", "SETUSER", "p", "<one")
    assert not enters("one") and enters("two")
    wire.command("ACL", "SETUSER", "p", "nopass")
    assert enters("anything")
    wire.command("ACL", "SETUSER", "p", "resetpass")
    assert not enters("two")


def test_a_default_user_without_rights(server: Any, wire: Any) -> None:
    wire.command("ACL", "SETUSER", "root", "on", ">pw", "+@all", "~*", "&*")
    root = server.connect()
    root.command("AUTH", "root", "pw")
    assert root.command("ACL", "SETUSER", "default", "off") == "OK"
    stranger = server.connect()
    assert refused(stranger.command("GET", "k")) == "NOAUTH Authentication required."
    assert stranger.command("HELLO", 3, "AUTH", "root", "pw")[b"proto"] == 3
    assert stranger.command("ACL", "WHOAMI") == b"root"
    assert stranger.command("RESET") == "RESET"
    assert refused(stranger.command("GET", "k")) == "NOAUTH Authentication required."


def test_a_change_binds_those_who_are_connected_and_a_removal_ends_them(server: Any, team: Any) -> None:
    admin = server.connect()
    assert team.command("SET", "team1:k", "v") == "OK"
    admin.command("ACL", "SETUSER", "alice", "resetkeys", "~other:*")
    assert refused(team.command("GET", "team1:k")) == KEY
    assert admin.command("ACL", "DELUSER", "alice", "nobody") == 1
    assert team.read_to_end() == b""
    assert refused(admin.command("ACL", "DELUSER", "default")) == "ERR The 'default' user cannot be removed"
    assert admin.command("ACL", "USERS") == [b"default"]


def test_users_outlive_the_server_and_are_those_of_all_its_processes(
    start_server: Any, wire_class: Any
) -> None:
    process = start_server()

    def connect() -> Any:
        return wire_class(socket.create_connection(("127.0.0.1", process.port)))

    admin = connect()
    admin.command("ACL", "SETUSER", "eve", "on", ">pw", "%R~a*", "~b?[x]", "&c*", "+@read", "-get")
    listed = admin.command("ACL", "LIST")
    mode = (process.data_dir / "users.acl").stat().st_mode & 0o777
    assert mode == 0o600 and b"pw" not in (process.data_dir / "users.acl").read_bytes()
    process.restart(crash=True)
    assert connect().command("ACL", "LIST") == listed
    assert connect().command("AUTH", "eve", "pw") == "OK"
    # What another process on the same directory writes is taken over.
    file = process.data_dir / "users.acl"
    text = file.read_text().replace("user eve", "user adam")
    (process.data_dir / "new").write_text(text)
    (process.data_dir / "new").replace(file)
    admin = connect()
    while admin.command("ACL", "USERS") != [b"adam", b"default"]:
        pass


def test_a_password_given_at_the_start_wins(start_local: Any, tmp_path: Any) -> None:
    first = start_local(data_dir=tmp_path / "same", password="one")
    wire = first.connect()
    assert wire.command("AUTH", "one") == "OK"
    wire.command("ACL", "SETUSER", "default", "resetpass", ">two")
    first.stop()
    assert (tmp_path / "same" / "users.acl").exists()
    wire = start_local(data_dir=tmp_path / "same", password="three").connect()
    assert refused(wire.command("AUTH", "two")).startswith("WRONGPASS")
    assert wire.command("AUTH", "three") == "OK"


def test_a_file_of_users_that_cannot_be_read_is_no_open_door(start_server: Any) -> None:
    process = start_server()
    process.stop()
    (process.data_dir / "users.acl").write_text("user default on nonsense\n")
    with pytest.raises(AssertionError, match="no ready line"):
        process.start()
    assert "users.acl, line 1" in process.errors.read_text()


def test_getuser_and_list(either: Any) -> None:
    either.command("ACL", "SETUSER", "u", "on", ">x", "~a*", "%R~b*", "&c", "-@all", "+@read", "+set", "-get")
    found = either.command("ACL", "GETUSER", "u")
    if isinstance(found, list):
        found = dict(zip(found[::2], found[1::2], strict=True))
    assert found == {
        b"flags": [b"on"],
        b"passwords": [hash_of(b"x").encode()],
        b"commands": b"-@all +@read +set -get",
        b"keys": b"~a* %R~b*",
        b"channels": b"&c",
        b"selectors": [],
    }
    assert either.command("ACL", "GETUSER", "nobody") is None
    lines = either.command("ACL", "LIST")
    assert lines[0] == b"user default on nopass ~* &* +@all"
    assert lines[1] == b"user u on #%b ~a* %%R~b* &c -@all +@read +set -get" % hash_of(b"x").encode()


def test_what_the_lines_say_makes_the_same_user(wire: Any) -> None:
    wire.command("ACL", "SETUSER", "u", "on", ">x", "~a*", "&c", "+@all", "-@dangerous", "+client|kill")
    line = next(line for line in wire.command("ACL", "LIST") if b" u " in line)
    wire.command("ACL", "SETUSER", "twin", *line.decode().split(" ")[2:])
    assert wire.command("ACL", "GETUSER", "twin") == wire.command("ACL", "GETUSER", "u")


def test_cat(wire: Any) -> None:
    assert wire.command("ACL", "CAT") == [name.encode() for name in sorted(CATEGORIES)]
    assert b"v.fetch" in wire.command("ACL", "CAT", "kv") and b"get" not in wire.command("ACL", "CAT", "kv")
    every = {name for names in CATEGORIES.values() for name in names}
    assert every == set(COMMANDS)


def test_genpass(wire: Any) -> None:
    assert len(wire.command("ACL", "GENPASS")) == 64 and len(wire.command("ACL", "GENPASS", 5)) == 2
    assert wire.command("ACL", "GENPASS") != wire.command("ACL", "GENPASS")
    for bits in ("0", "4097", "x"):
        assert "positive number up to 4096" in refused(wire.command("ACL", "GENPASS", bits))


def test_dryrun(wire: Any, team: Any) -> None:
    ask = ("ACL", "DRYRUN", "alice")
    assert wire.command(*ask, "GET", "team1:x") == "OK"
    assert wire.command(*ask, "V.FETCH", "team2:x_pk", 0, 0) == (
        b"User alice has no permissions to access the 'team2:x' key"
    )
    assert refused(wire.command("ACL", "DRYRUN", "nobody", "PING")) == "ERR User 'nobody' not found"


def test_what_was_refused_is_on_record(server: Any, wire: Any, team: Any) -> None:
    for _ in range(3):
        team.command("GET", "team2:x")
    team.command("SUBSCRIBE", "nothing")
    server.connect().command("AUTH", "alice", "guess")
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in wire.command("ACL", "LOG")]
    assert [(entry[b"reason"], entry[b"object"], entry[b"count"]) for entry in entries] == [
        (b"auth", b"AUTH", 1),
        (b"channel", b"nothing", 1),
        (b"key", b"team2:x", 3),
    ]
    assert entries[0][b"username"] == b"alice" and b"addr=127.0.0.1" in entries[2][b"client-info"]
    assert len(wire.command("ACL", "LOG", 1)) == 1
    assert wire.command("ACL", "LOG", "RESET") == "OK" and wire.command("ACL", "LOG") == []


WRONG = [
    ("+nosuch", "Unknown command or category name in ACL"),
    ("-@nosuch", "Unknown command or category name in ACL"),
    ("nonsense", "Syntax error"),
    ("~", "Syntax error"),
    ("%X~a", "Syntax error"),
    (
        "#abc",
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters",
    ),
    ("<absent", "The password you are trying to remove from the user does not exist"),
]


@pytest.mark.parametrize("rule, why", WRONG)
def test_one_wrong_rule_and_nothing_changes(rule: str, why: str, wire: Any) -> None:
    shown = "(secret)" if rule[0] in "#<" else rule
    text = refused(wire.command("ACL", "SETUSER", "u", "on", "+@all", rule))
    assert text == f"ERR Error in ACL SETUSER modifier '{shown}': {why}"
    assert wire.command("ACL", "GETUSER", "u") is None


def test_a_pattern_after_all_patterns_is_refused() -> None:
    user = User(name="u")
    user.apply(("~*", "~*"))
    with pytest.raises(RuleError, match="resetkeys"):
        user.apply(("~a",))
    user.apply(("resetkeys", "~a", "~*"))
    assert user.keys_text == "~*"


def test_names_of_users(wire: Any) -> None:
    for name in ("", "a b", "a\nb"):
        assert "Usernames" in refused(wire.command("ACL", "SETUSER", name))


def test_users_and_settings_are_those_of_every_worker_also_of_a_new_one(
    start_server: Any, wire_class: Any
) -> None:
    process = start_server("--workers", "2", "--password", "old")

    def connect(worker: int, password: str, user: str = "default") -> Any:
        while True:
            wire = wire_class(socket.create_connection(("127.0.0.1", process.port)))
            answer = wire.command("AUTH", user, password)
            if isinstance(answer, CommandError):
                return answer
            if b"worker_id:%d\r" % worker in wire.command("INFO", "workers"):
                return wire

    first = connect(0, "old")
    assert first.command("ACL", "SETUSER", "eve", "on", ">pw", "~*", "+@all") == "OK"
    assert first.command("CONFIG", "SET", "requirepass", "new", "slowlog-max-len", 7) == "OK"
    while isinstance(second := connect(1, "new"), CommandError):
        pass
    while second.command("CONFIG", "GET", "slowlog-max-len") != [b"slowlog-max-len", b"7"]:
        pass
    pid = int(second.command("INFO", "server").split(b"process_id:")[1].split()[0])
    os.kill(pid, signal.SIGKILL)
    again = connect(1, "pw", "eve")
    assert again.command("CONFIG", "GET", "slowlog-max-len") == [b"slowlog-max-len", b"7"]
    assert str(connect(1, "old")).startswith("WRONGPASS")
    process.restart()
    assert str(connect(0, "new")).startswith("WRONGPASS")
    assert connect(1, "old").command("ACL", "USERS") == [b"default", b"eve"]


def test_no_command_takes_a_name_that_the_rules_do_not_see() -> None:
    """Every parameter that is a name is a `key`, in a key position or behind a word of its own."""

    def walk(parameters: Any, behind: bool = False) -> Any:
        for parameter in parameters:
            yield parameter, behind or bool(parameter.token)
            yield from walk(parameter.parts, behind or bool(parameter.token))

    named = {
        "namespace",
        "session",
        "child",
        "parent",
        "key",
        "k-session",
        "v-session",
        "newkey",
        "destination",
    }
    for spec in COMMANDS.values():
        for parameter, behind in walk(spec.parameters):
            if parameter.name in named and parameter.kind not in ("block", "oneof"):
                assert parameter.kind == "key", spec.name
            if parameter.kind == "key" and not behind:
                assert spec.first_key > 0, spec.name


def test_a_selector_allows_what_it_allows_alone(server: Any, filled: Any) -> None:
    """Redis 7: the whole line must pass under the user's own rules, or under one selector."""
    ann = login(
        server, "ann", "~team1:*", "+@all", "(%R~team2:* +get +kv.prefix.lookup)", "(", "~lone", "+set", ")"
    )
    assert ann.command("GET", "team1:x") == ann.command("GET", "team2:x") == b"v"
    assert ann.command("KV.PREFIX.LOOKUP", "team2:x") == "HIT"
    assert ann.command("SET", "lone", "v") == "OK"
    for line in (
        ("SET", "team2:x", "w"),
        ("GET", "lone"),
        ("HGETALL", "team2:x:h"),
        ("MGET", "team1:x", "team2:x"),
        ("COPY", "team2:x", "team1:copy"),
        ("FLUSHALL",),
    ):
        assert refused(ann.command(*line)) == KEY, line
    assert {b"team1:x", b"team2:x"} <= set(ann.command("KEYS", "*"))
    bob = login(server, "bob", "-@all", "(+get ~*)")
    assert bob.command("GET", "team1:x") == b"v"
    assert refused(bob.command("SET", "team1:x", "w")) == (
        "NOPERM User bob has no permissions to run the 'set' command"
    )


def test_selectors_are_shown_kept_and_cleared(start_local: Any, wire: Any) -> None:
    rules = ("on", "nopass", "~a*", "+get", "(%R~b* &c +@read -mget)", "(~d +set)")
    assert wire.command("ACL", "SETUSER", "u", *rules) == "OK"
    shown = dict(zip(*[iter(wire.command("ACL", "GETUSER", "u"))] * 2, strict=True))
    assert shown[b"selectors"] == [
        [b"commands", b"-@all +@read -mget", b"keys", b"%R~b*", b"channels", b"&c"],
        [b"commands", b"-@all +set", b"keys", b"~d", b"channels", b""],
    ]
    line = next(line.decode() for line in wire.command("ACL", "LIST") if b" u " in line)
    assert line.endswith("(%R~b* &c -@all +@read -mget) (~d resetchannels -@all +set)")
    again = User(name="u")
    again.apply(line.split(" ")[2:])
    assert again.full_line() == line
    assert wire.command("ACL", "SETUSER", "u", "clearselectors") == "OK"
    assert dict(zip(*[iter(wire.command("ACL", "GETUSER", "u"))] * 2, strict=True))[b"selectors"] == []


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (["(+get", "~a"], "Unmatched parenthesis in acl selector starting at '(+get'"),
        (["(on)"], "Error in ACL SETUSER modifier '(on)': Syntax error"),
        (["(+nosuch)"], "Unknown command or category name in ACL"),
    ],
)
def test_wrong_selectors_are_refused(wire: Any, rules: list[str], why: str) -> None:
    assert why in refused(wire.command("ACL", "SETUSER", "u", *rules))
