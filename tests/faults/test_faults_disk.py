"""What the disk and the system refuse, and what happens to files: an error or a miss with a reason.

In each case the server lives, and serves what is not touched, in every worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import redis
from faults_rows import ROW_BYTES, SIDES, connect, look, name_of, pattern, store
from server_process import ServerProcess

KEPT, ROWS, LAYERS = 1, 400, 2
FILLER = 100
WHOLE = (True, {(side, layer): (ROWS, 1) for side in (0, 1) for layer in range(LAYERS)})
MIB = 1 << 20


class Clients:
    """One client of each worker of a server, which holds a prefix that no fault may touch."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.of: dict[int, redis.Redis] = {}
        others = []
        while len(self.of) < 2:
            client = connect(server.port)
            others.append(self.of.setdefault(client.info("workers")["worker_id"], client))
        self.pids = [self.of[0].info("workers")[f"worker{number}"]["pid"] for number in (0, 1)]

    def put(self, number: int, client: int = 0) -> None:
        """Store a whole prefix."""
        self.of[client].execute_command("KV.PREFIX.REGISTER", name_of(number), 64, "fp32")
        for layer in range(LAYERS):
            store(self.of[client], number, layer, (0, ROWS), 1)

    def check(self) -> None:
        """Every worker lives, and has the prefix that no fault touches."""
        for client in self.of.values():
            assert look(client, KEPT) == WHOLE
            for number in (0, 1):
                worker = client.info("workers")[f"worker{number}"]
                assert (worker["pid"], worker["lives"]) == (self.pids[number], 1)

    def limit(self, what: int, value: int) -> None:
        """Set a limit of the workers' processes, the hard one left alone."""
        for pid in self.pids:
            hard = resource.prlimit(pid, what)[1]
            resource.prlimit(pid, what, (value if value >= 0 else hard, hard))

    def close(self) -> None:
        for client in self.of.values():
            client.close()


@pytest.fixture
def serve(tmp_path):
    """Starts a server of two workers on a directory; its clients."""
    started = []

    def start(folder: Path = tmp_path, *flags: str) -> Clients:
        server = ServerProcess(folder / "data", "--workers", "2", *flags)
        server.errors = tmp_path / "server.log"
        started.append(server)
        server.start()
        started.append(clients := Clients(server))
        return clients

    yield start
    for thing in reversed(started):
        thing.close()


def mount(folder: Path, *options: str) -> bool:
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB; None where this user may mount none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = mount(folder, "-o", "size=24m")
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refused(client: redis.Redis, *command: object) -> str:
    """The error that a command is refused with."""
    with pytest.raises(redis.ResponseError) as caught:
        client.execute_command(*command)
    return str(caught.value)


def fill(client: redis.Redis, sid: str, row_bytes: int, *options: str) -> str:
    """Store a megabyte after the other until that is refused; the error."""
    for layer in range(200):
        try:
            client.execute_command("V.STOREBATCH", sid, layer, 0, MIB // row_bytes, bytes(MIB), *options)
        except redis.ResponseError as error:
            return str(error)
    raise AssertionError("never refused")


def fillers(client: redis.Redis) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Sessions whose rows take each way into a page: as they come, packed, packed with a copy kept."""
    ways = {
        "direct": ("fp32", ROW_BYTES, ()),
        "packed": ("int8", ROW_BYTES, ()),
        "spooled": ("int8", ROW_BYTES // 2, ("FMT", "BF16")),
        "landing": ("fp16", ROW_BYTES // 2, ("FMT", "F16")),
    }
    for sid, (format, _, _) in ways.items():
        client.execute_command("V.CREATE", sid, 64, "VQUANT", format)
    return {sid: (row_bytes, options) for sid, (_, row_bytes, options) in ways.items()}


def exhaust(clients: Clients) -> None:
    """Store by every way, as rows and as plain keys, until nothing more is taken; all of it clean errors."""
    first, second = clients.of[0], clients.of[1]
    for sid, (row_bytes, options) in fillers(first).items():
        assert "no space left for a" in fill(second, sid, row_bytes, *options)
        clients.check()
    for size in (3 * MIB, 1_000):
        error = ""
        for index in range(50_000):
            try:
                first.set(f"key-{size}-{index}", bytes(size))
            except redis.ResponseError as refusal:
                error = str(refusal)
                break
        assert "no space left for" in error
    clients.check()


def test_a_full_disk(serve, small_disk) -> None:
    if small_disk is None:
        # Without the right to mount there is no disk to fill: the limit of file sizes below stands for it.
        return
    clients = serve(small_disk)
    clients.put(KEPT)
    exhaust(clients)
    assert shutil.disk_usage(small_disk).free < MIB
    assert clients.of[1].execute_command("V.DROP", "direct") == 1, "what frees room goes on"
    clients.check()
    clients.put(FILLER, client=1)
    assert look(clients.of[0], FILLER) == WHOLE
    assert clients.server.stop() == 0
    clients.server.start()
    again = Clients(clients.server)
    again.check()
    again.close()


def test_files_may_not_grow(serve) -> None:
    """The kernel refuses what a full disk would refuse, with another error."""
    clients = serve()
    clients.put(KEPT)
    fillers(clients.of[0])
    clients.limit(resource.RLIMIT_FSIZE, 300_000)
    for sid, (row_bytes, options) in fillers(clients.of[0]).items():
        rows = MIB // row_bytes
        error = refused(clients.of[1], "V.STOREBATCH", sid, 0, 0, rows, bytes(MIB), *options)
        assert "no space left for a" in error
    assert "no space left for a page" in refused(clients.of[0], "SET", "large", bytes(MIB))
    clients.check()
    clients.limit(resource.RLIMIT_FSIZE, -1)
    clients.put(FILLER)
    assert look(clients.of[1], FILLER) == WHOLE


def leave_no_block(folder: Path) -> Path:
    """A file that leaves no block of a file system free."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


@pytest.mark.parametrize("durability", ["everysec", "always"])
def test_a_server_starts_on_a_full_disk(durability, small_disk, tmp_path) -> None:
    """What is stored is served from then on, and can be removed; without a reserve nothing is harmed."""
    if small_disk is None:
        return
    server = ServerProcess(small_disk / "data", "--durability", durability)
    server.errors = tmp_path / "server.log"
    try:
        with pytest.raises(AssertionError, match="no space left for opening the data directory"):
            filler = leave_no_block(small_disk)
            server.start()
        filler.unlink()
        server.start()
        with connect(server.port) as client:
            client.execute_command("KV.PREFIX.REGISTER", name_of(KEPT), 64, "fp32")
            for layer in range(LAYERS):
                store(client, KEPT, layer, (0, ROWS), 1)
            client.execute_command("V.CREATE", "s", 64, "VQUANT", "fp32")
        for reserve in (True, False):
            server.kill()
            if not reserve:
                (small_disk / "data" / "reserve").unlink(missing_ok=True)
                with pytest.raises(AssertionError, match="no space left for opening the data directory"):
                    filler = leave_no_block(small_disk)
                    server.start()
                filler.unlink()
            else:
                filler = leave_no_block(small_disk)
            server.start()
            with connect(server.port) as client:
                assert look(client, KEPT) == WHOLE
                if reserve:
                    assert client.execute_command("V.DROP", "s") == 1
            if reserve:
                filler.unlink()
    finally:
        server.close()


def test_a_directory_that_becomes_read_only(serve, small_disk) -> None:
    if small_disk is None:
        return
    clients = serve(small_disk)
    clients.put(KEPT)
    clients.of[0].execute_command("V.CREATE", "s", 64, "VQUANT", "fp32")
    # The kernel remounts no file system with files open for writing, so the folder is bound to itself.
    pages = small_disk / "data" / "pages"
    subprocess.run(["mount", "--bind", str(pages), str(pages)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(pages)], check=True)
    try:
        for client in clients.of.values():
            error = refused(client, "V.STOREBATCH", "s", 0, 0, 4000, bytes(4000 * ROW_BYTES))
            assert "Read-only file system" in error
            assert "Read-only file system" in refused(client, "SET", "large", bytes(MIB))
        clients.check()
    finally:
        subprocess.run(["umount", "--lazy", str(pages)], check=True)
    clients.put(FILLER)
    assert look(clients.of[1], FILLER) == WHOLE


def test_no_file_handles_left(serve) -> None:
    clients = serve()
    clients.put(KEPT)
    for number in range(FILLER, FILLER + 6):
        clients.put(number, client=number % 2)
    used = max(len(os.listdir(f"/proc/{pid}/fd")) for pid in clients.pids)
    clients.limit(resource.RLIMIT_NOFILE, used)
    waiting = [socket.create_connection(("127.0.0.1", clients.server.port)) for _ in range(8)]
    errors = set()
    for number in range(FILLER + 10, FILLER + 40):
        for client in clients.of.values():
            try:
                client.execute_command("KV.PREFIX.REGISTER", name_of(number), 64, "fp32")
                store(client, number, 0, (0, ROWS), 1)
                client.execute_command("V.FETCH", name_of(number) + SIDES[0], 0, "RANGE", 0, ROWS)
            except redis.ResponseError as error:
                errors.add(str(error))
    assert all("may open no more files" in error for error in errors), errors
    assert errors
    clients.limit(resource.RLIMIT_NOFILE, -1)
    for wire in waiting:
        wire.close()
    clients.check()
    late = connect(clients.server.port)
    assert late.ping()
    late.close()
    clients.put(FILLER + 50)
    assert look(clients.of[1], FILLER + 50) == WHOLE


def reason(client: redis.Redis, number: int) -> str:
    """Why a damaged prefix is not served. Layers that are served before the damage is met are right."""
    for side, suffix in enumerate(SIDES):
        for layer in range(LAYERS):
            try:
                raw = client.execute_command(
                    "V.FETCH", name_of(number) + suffix, layer, "RANGE", 0, ROWS, "FMT", "RAW"
                )
            except redis.ResponseError as error:
                return str(error)
            assert raw == pattern(number, side, layer, 0, ROWS, 1)
    raise AssertionError("every byte is served")


def flip_one_bit(page: Path, other: Path) -> None:
    raw = bytearray(page.read_bytes())
    raw[5000] ^= 8
    page.write_bytes(raw)


def tear(page: Path, other: Path) -> None:
    """Only the first blocks reached the disk."""
    raw = page.read_bytes()
    page.write_bytes(raw[:49_152].ljust(len(raw), b"\0"))


DAMAGES = {
    "torn": tear,
    "one byte short": lambda page, other: os.truncate(page, page.stat().st_size - 1),
    "one bit": flip_one_bit,
    "junk behind": lambda page, other: page.write_bytes(page.read_bytes() + b"junk"),
    "another page": lambda page, other: shutil.copyfile(other, page),
    "missing": lambda page, other: page.unlink(),
    "empty": lambda page, other: os.truncate(page, 0),
}


def test_damaged_files(serve) -> None:
    """Each prefix but one is damaged in its own way: each is a miss with a reason, in every worker."""
    clients = serve()
    clients.put(KEPT)
    pages = clients.server.data_dir / "pages"
    known = set(pages.iterdir())
    intact = next(iter(known))
    files = {}
    for number, damage in enumerate(DAMAGES, FILLER):
        clients.put(number, client=number % 2)
        files[damage] = next(page for page in pages.iterdir() if page not in known)
        known.add(files[damage])
    clients.close()
    assert clients.server.stop() == 0
    for damage, page in files.items():
        assert page.stat().st_size == intact.stat().st_size
        DAMAGES[damage](page, intact)
    clients.server.start()
    again = Clients(clients.server)
    try:
        for number in range(FILLER, FILLER + len(DAMAGES)):
            for client in (again.of[number % 2], again.of[1 - number % 2]):
                assert reason(client, number).startswith("QUARANTINED")
                assert client.execute_command("KV.PREFIX.LOOKUP", name_of(number)) == b"MISS"
        again.check()
        for number in range(FILLER, FILLER + len(DAMAGES)):
            again.put(number)
            assert look(again.of[1], number) == WHOLE, "stored anew it is served again"
    finally:
        again.close()


def test_a_directory_without_rights_is_refused_at_the_start(tmp_path) -> None:
    server = ServerProcess(tmp_path / "file" / "data", "--workers", "2")
    server.errors = tmp_path / "server.log"
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AssertionError, match="no ready line") as caught:
        server.start()
    assert "Traceback" not in str(caught.value) and "Not a directory" in str(caught.value)
