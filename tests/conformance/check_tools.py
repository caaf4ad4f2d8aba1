"""Redis' and Valkey's own programs, and the Prometheus exporter, against our server."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

import peers
from outcome import Check, NotHere, holds, same
from server_process import ServerProcess
from wire import Wire, encode

SECONDS = 300
Function = Callable[[str, ServerProcess], str]


def checks(server: ServerProcess, *, long: bool) -> Iterator[Check]:
    """The programs, where they are installed; a program that is not is reported as missing."""
    for program in ("redis-cli", "valkey-cli"):
        for function in FUNCTIONS if peers.program(program) else (commands,):
            name = (function.__doc__ or "").splitlines()[0].rstrip(".")
            yield Check(program, name, partial(with_program, program, function, server))
    for program in ("redis-benchmark", "valkey-benchmark"):
        yield Check(
            program, "PING, SET, GET, pipelined and not", partial(with_program, program, benchmark, server)
        )
    yield Check("nc", "Inline commands by hand", partial(inline, server))
    yield Check("prometheus-redis-exporter", "Scrape", partial(exporter, server))


def with_program(name: str, function: Function, server: ServerProcess) -> str:
    """Call a check with the program, or say that it is not there."""
    path = peers.program(name)
    if path is None:
        raise NotHere(f"{name} is not installed")
    return function(path, server)


def output(
    program: str, server: ServerProcess, *arguments: str, given: bytes = b"", seconds: int = SECONDS
) -> str:
    """What a program prints when it talks to the server."""
    command = [program, "-h", "127.0.0.1", "-p", str(server.port), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, check=False)
    if done.returncode:
        raise AssertionError(
            f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()[-500:]}"
        )
    return done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")


def commands(cli: str, server: ServerProcess) -> str:
    """Commands of ours and of Redis, one by one."""
    ask = partial(output, cli, server)
    same("REGISTER", ask("KV.PREFIX.REGISTER", "cli", "32", "fp16"), "OK\n")
    same("LOOKUP", ask("KV.PREFIX.LOOKUP", "cli"), "MISS\n")
    for side in ("cli_pk", "cli_pv"):
        same("STOREBATCH", ask("-x", "V.STOREBATCH", side, "0", "0", "1", given=bytes(128)), "OK\n")
    same("LOOKUP after storing", ask("KV.PREFIX.LOOKUP", "cli"), "HIT\n")
    holds("V.INFO", "layer_0_tokens:1" in ask("V.INFO", "cli_pk"))
    holds("an error is shown", "session not found" in ask("V.FETCH", "nobody", "0", "0"))
    same("DROP", ask("KV.PREFIX.DROP", "cli"), "1\n")
    return "register, store, look up, drop"


def help_pages(cli: str, server: ServerProcess) -> str:
    """Help and hints from COMMAND DOCS."""
    for command, words in {"V.FETCH": "RANGE", "KV.PREFIX.REGISTER": "kv-dim", "GET": "key"}.items():
        text = output(cli, server, given=f"HELP {command}\n".encode())
        holds(f"HELP {command} shows {words}: {text}", words in text and "summary" in text)
    return "HELP of our commands and of Redis'"


def scan(cli: str, server: ServerProcess) -> str:
    """--scan."""
    with Wire(server.port) as wire:
        names = {f"scan:{i}" for i in range(1000)}
        for name in names:
            wire.send(b"".join(encode("SET", name, "1")))
        for _ in names:
            same("SET", wire.read(), b"OK")
        found = output(cli, server, "--scan", "--pattern", "scan:*").split()
        same("keys", set(found), names)
        same("removed", wire.ok("DEL", *names), 1000)
    return "1000 keys"


def big_keys(cli: str, server: ServerProcess) -> str:
    """--bigkeys and --memkeys."""
    with Wire(server.port) as wire:
        wire.ok("SET", "big:string", bytes(100_000))
        wire.ok("HSET", "big:hash", "field", "value")
        wire.ok("ZADD", "big:zset", 1, "member")
        text = output(cli, server, "--bigkeys")
        holds(text, "big:string" in text and "100000 bytes" in text)
        holds("--memkeys", "big:string" in output(cli, server, "--memkeys"))
        wire.ok("DEL", "big:string", "big:hash", "big:zset")
    return "all kinds of keys"


def statistics(cli: str, server: ServerProcess) -> str:
    """--stat, which goes on until it is stopped."""
    command = [cli, "-p", str(server.port), "-i", "0.1", "--stat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = "".join(process.stdout.readline() for _ in range(5))
        process.kill()
    holds(text, re.search(r"^\d+ +[\d.]+[KMGB]? +\d+", text, re.M))
    return "figures of INFO"


def latency(cli: str, server: ServerProcess) -> str:
    """--latency."""
    text = output(cli, server, "-i", "1", "--latency", "--raw")
    holds(text, re.search(r"\d+ \d+ [\d.]+ \d+", text))
    return f"min, max, mean in ms and count: {text.split(chr(10))[0]}"


def resp3(cli: str, server: ServerProcess) -> str:
    """-3 shows a map."""
    text = output(cli, server, "-3", "HELLO", "3")
    holds(text, re.search(r"proto['\"]? ?(=>)? ?(\(integer\) )?3|proto\n3", text))
    receipt = output(cli, server, "-3", "PION.STATS")
    holds(receipt, "kvprefix_hits" in receipt)
    return "HELLO and PION.STATS"


def mass_insertion(cli: str, server: ServerProcess) -> str:
    """--pipe."""
    commands = b"".join(b"".join(encode("SET", f"pipe:{i}", i)) for i in range(10_000))
    text = output(cli, server, "--pipe", given=commands)
    holds(text, "errors: 0, replies: 10000" in text)
    with Wire(server.port) as wire:
        same("last value", wire.ok("GET", "pipe:9999"), b"9999")
        wire.ok("DEL", *(f"pipe:{i}" for i in range(10_000)))
    return "10000 commands"


def benchmark(program: str, server: ServerProcess) -> str:
    """The benchmark runs to its end; its figures are in the benchmarks' results."""
    for options in (("-P", "1"), ("-P", "16"), ("-P", "16", "-3")):
        text = output(program, server, "-q", "-n", "5000", "-t", "ping,set,get", *options)
        for test in ("PING_INLINE", "SET", "GET"):
            holds(f"{test} with {options}: {text}", re.search(rf"{test}: [\d.]+ requests per second", text))
    return "RESP2 and RESP3"


FUNCTIONS: tuple[Function, ...] = (
    commands, help_pages, scan, big_keys, statistics, latency, resp3, mass_insertion,
)  # fmt: skip


def inline(server: ServerProcess) -> str:
    """What a person types."""
    path = peers.program("nc", "ncat")
    if path is None:
        raise NotHere("nc is not installed")
    typed = b'PING\r\nSET greeting "hello world"\nGET greeting\r\n\r\nDEL greeting\r\nQUIT\r\n'
    done = subprocess.run(
        [path, "127.0.0.1", str(server.port)], input=typed, capture_output=True, timeout=SECONDS, check=True
    )
    same("replies", done.stdout, b"+PONG\r\n+OK\r\n$11\r\nhello world\r\n:1\r\n+OK\r\n")
    return "quoted words, bare newlines, an empty line"


def exporter(server: ServerProcess) -> str:
    """The exporter finds the server up and reads its figures."""
    path = peers.program("prometheus-redis-exporter", "redis_exporter")
    if path is None:
        raise NotHere("prometheus-redis-exporter is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["-redis.addr", f"redis://127.0.0.1:{server.port}", "-web.listen-address", address]
    options += ["-export-client-list", "-check-keys", "exported*", "-include-system-metrics"]
    with Wire(server.port) as wire:
        wire.ok("SET", "exported", "12345")
        page = _scrape([path, *options], address)
        wire.ok("DEL", "exported")
    figures = dict(re.findall(r"^(redis_\w+)(?:\{[^}]*\})? (\S+)$", page, re.M))
    same("redis_up", figures.get("redis_up"), "1")
    wanted = "connected_clients memory_used_bytes memory_max_bytes commands_processed_total uptime_in_seconds"
    wanted += " keyspace_hits_total keyspace_misses_total db_keys slowlog_length evicted_keys_total"
    missing = [name for name in wanted.split() if f"redis_{name}" not in figures]
    same("figures that are missing", missing, [])
    same("size of a checked key", figures.get("redis_key_size"), "5")
    error = re.search(r'redis_exporter_last_scrape_error\{err="([^"]*)"\} (\d)', page)
    holds(f"the scrape had no error: {error and error[1]}", error is not None and error[2] == "0")
    return f"{len(figures)} figures"


def _scrape(command: list[str], address: str) -> str:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            if not any("Providing metrics" in line for line in process.stderr):
                raise RuntimeError("the exporter did not start")
            for _ in range(1000):
                with contextlib.suppress(ConnectionError, urllib.error.URLError):
                    return _page(f"http://{address}/metrics")
            raise RuntimeError("the exporter does not listen")
        finally:
            process.kill()


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as reply:
        return str(reply.read().decode())
