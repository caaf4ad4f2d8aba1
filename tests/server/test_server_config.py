"""Settings: where they come from, which wins, and what is said about a bad one."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys

import pytest
from pionkv.server.config import SETTINGS, ConfigError, Settings, load, parse_size
from pionkv.server.rewriting import rewrite


def test_defaults() -> None:
    assert load({}, {}) == Settings()
    assert Settings().port == 1974 and Settings().host == "127.0.0.1" and Settings().durability == "everysec"


def test_flags_over_environment_over_file(tmp_path) -> None:
    file = tmp_path / "pionkv.toml"
    file.write_text('port = 1\nmax-bytes = "1gb"\nthreads = 3\nhost = "::1"\nprotected-mode = false\n')
    environment = {"PIONKV_PORT": "2", "PIONKV_MAX_BYTES": "2gb", "PORT": "9"}
    settings = load({"port": "3", "threads": None}, environment, file)
    assert (settings.port, settings.max_bytes, settings.threads, settings.host) == (3, 2 << 30, 3, "::1")
    assert settings.protected_mode == "no"


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("port", "x", "port: 'x' is not a whole number within -1..65535"),
        ("port", "65536", "port: 65536 is not within -1..65535"),
        ("port", "1_0", "port: '1_0' is not a whole number within -1..65535"),
        ("max_bytes", "8 boxes", "max_bytes: '8 boxes' is not a size such as 512mb"),
        ("max_bytes", "-1", "max_bytes: '-1' is not a size such as 512mb"),
        ("durability", "often", "durability: 'often' is not one of none, everysec, always"),
        ("stop_seconds", "-1", "stop_seconds: '-1' is not a number of seconds"),
        ("stop_seconds", "nan", "stop_seconds: 'nan' is not a number of seconds"),
        ("stop_seconds", "soon", "stop_seconds: 'soon' is not a number of seconds"),
        ("threads", "0", "threads: 0 is not within 1..64"),
        ("log_level", "loud", "log_level: 'loud' is not one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_is_named(name, text, message) -> None:
    with pytest.raises(ConfigError, match=".*") as caught:
        load({name: text}, {})
    assert str(caught.value).startswith(message)


def test_a_bad_file(tmp_path) -> None:
    file = tmp_path / "pionkv.toml"
    with pytest.raises(ConfigError, match=r"pionkv.toml: No such file or directory$"):
        load({}, {}, file)
    file.write_text("port = ")
    with pytest.raises(ConfigError, match="pionkv.toml"):
        load({}, {}, file)
    file.write_text("colour = 3")
    with pytest.raises(ConfigError, match="unknown setting 'colour'"):
        load({}, {}, file)


SIZES = {"0": 0, "12": 12, "5b": 5, "3k": 3000, "3kb": 3072, "1m": 1000**2, "512mb": 512 << 20}
SIZES |= {"8GB": 8 << 30, "2 GiB": 2 << 30, "1tb": 1 << 40}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text) -> None:
    assert parse_size(text) == SIZES[text]


def test_secrets_are_not_printed() -> None:
    settings = dataclasses.replace(Settings(), password="hush")
    assert settings.printable()["password"] == "***"
    assert "hush" not in str(settings.printable())
    assert "hush" not in repr(settings)


def run(*args, **environment):
    command = [sys.executable, "-m", "pionkv.server", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment or None)


def test_every_setting_is_a_flag() -> None:
    defaults = {name: str(item.default) for name, item in SETTINGS.items() if item.default is not None}
    flags = [word for name, text in defaults.items() for word in (f"--{name.replace('_', '-')}", text)]
    found = run(*flags, "--print-config")
    assert found.returncode == 0, found.stderr
    assert {f"{name} = {text}" for name, text in defaults.items()} <= set(found.stdout.splitlines())


def test_print_config_masks_secrets_and_reads_the_environment() -> None:
    found = run("--print-config", PIONKV_PASSWORD="hush", PIONKV_PORT="7")
    assert "password = ***" in found.stdout and "port = 7" in found.stdout and "hush" not in found.stdout


def test_a_bad_flag_ends_with_a_usage_error() -> None:
    found = run("--port", "x")
    assert found.returncode == 2 and "port: " in found.stderr and "Traceback" not in found.stderr
    assert run("--nosuch").returncode == 2


def test_version() -> None:
    from importlib.metadata import version

    command = [sys.executable, "-c", "from pionkv.server.cli import main; main()", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.stdout == f"pionkv {version('pionkv')}\n"


FILE = """# What we serve
max-bytes = "1gb"   # as much as the disk has
host = "127.0.0.1"

slowlog_max_len = 5
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_config_set_has_changed_is_written_into_the_file(
    tmp_path, start_server, wire_class, workers
) -> None:
    file = tmp_path / "pionkv.toml"
    file.write_text(FILE)
    file.chmod(0o640)
    server = start_server("--config", str(file), "--workers", workers, "--max-clients", "77")
    wire = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    assert wire.command("CONFIG", "REWRITE") == "OK"
    assert file.read_text() == FILE + "max_clients = 77\n", "as Redis does, flags that were given as well"
    changes = ("maxmemory", "2gb", "slowlog-max-len", "9", "timeout", "0", "shutdown-timeout", "2.5")
    assert wire.command("CONFIG", "SET", *changes, "requirepass", "secret") == "OK"
    assert wire.command("CONFIG", "REWRITE") == "OK"
    assert file.read_text() == FILE.replace('"1gb"', str(2 << 30)).replace("= 5", "= 9") + (
        "max_clients = 77\nstop_seconds = 2.5\n"
    )
    assert file.stat().st_mode & 0o777 == 0o640 and os.listdir(tmp_path).count("pionkv.toml") == 1
    assert "secret" not in file.read_text()
    server.restart()
    wire = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    assert wire.command("AUTH", "secret") == "OK", "it is kept with the users"
    assert wire.command("CONFIG", "GET", "maxmemory", "slowlog-max-len") == [
        b"maxmemory", str(2 << 30).encode(), b"slowlog-max-len", b"9",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ['max-bytes = """\\\n1gb"""\n', "x = {", "colour = 3"])
def test_a_file_that_cannot_be_rewritten_stays_as_it_is(tmp_path, text) -> None:
    file = tmp_path / "pionkv.toml"
    file.write_text(text)
    settings = dataclasses.replace(Settings(), max_bytes=5, file=file)
    with pytest.raises(ConfigError):
        rewrite(settings)
    assert file.read_text() == text and os.listdir(tmp_path) == ["pionkv.toml"]


def test_without_a_file_there_is_nothing_to_rewrite(server_process, wire_class) -> None:
    wire = wire_class(socket.create_connection(("127.0.0.1", server_process.port)))
    assert "running without a config file" in str(wire.command("CONFIG", "REWRITE"))
