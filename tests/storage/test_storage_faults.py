"""What the system refuses: an error that says so, nothing half-visible, and a store that goes on."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from pionkv.storage import CatalogCorrupt, DirectoryError, NoSpace, Store, StoreOptions
from pionkv.storage import open_pages as open_pages_module
from pionkv.storage.files import set_aside

ROW = 64
COUNT = 3 * 1024 * 1024 // ROW


def refuse(code, after=0):
    """A system call that fails with an error after so many calls."""
    calls = iter(range(after))

    def fake(*args, **kwargs):
        if next(calls, None) is None:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    real = os.pwrite
    return fake


@pytest.fixture
def session(driver, schema):
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, b"\1" * (4 * ROW))
    return driver


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_full_disk_on_a_page(session, monkeypatch, code, after):
    before = session.store.info()
    monkeypatch.setattr(open_pages_module.os, "pwrite", refuse(code, after))
    with pytest.raises(NoSpace, match="page"):
        session.put(b"s", 0, 4, bytes(COUNT * ROW))
    monkeypatch.undo()
    assert session.store.info() == before
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW)
    session.put(b"s", 0, 4, b"\2" * (COUNT * ROW))
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW) + b"\2" * (COUNT * ROW)
    session.store.drop_sessions([b"s"])
    assert session.files == []


def test_a_write_that_the_system_does_in_parts(session, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(
        open_pages_module.os, "pwrite", lambda fd, data, offset: real(fd, data[:1000], offset)
    )
    session.put(b"s", 1, 0, b"\3" * (100 * ROW))
    assert session.whole(b"s", 1) == b"\3" * (100 * ROW)


def test_a_file_that_takes_no_blocks_ahead_is_left_as_it_is(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"as it was")
    with file.open("rb") as read_only:
        set_aside(read_only.fileno(), 0, 1 << 20)
    reader, writer = os.pipe()
    set_aside(writer, 0, 1 << 20)
    os.close(reader)
    os.close(writer)
    assert file.read_bytes() == b"as it was" and file.stat().st_blocks <= 8


def test_other_errors_of_the_disk_are_not_hidden(session, monkeypatch):
    monkeypatch.setattr(open_pages_module.os, "pwrite", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        session.put(b"s", 0, 4, bytes(ROW))
    monkeypatch.undo()
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW)


def limited(path: Path, script: str) -> str:
    """Run statements with a store `s` in a process of its own; what they print."""
    code = f"""
import os, resource, sys
from pionkv.kernels import LayerSpec
from pionkv.storage import *
schema = Schema.uniform(LayerSpec("fp16", 32))
s = Store.open({str(path)!r})
def put(sid, layer, start, data):
    with s.begin_write(sid, layer, start, len(data) // 64) as write:
        while (segment := write.next_segment()) is not None:
            segment[:] = data[: len(segment)]
            data = data[len(segment) :]
        write.commit()
{script}
s.close()
"""
    return run(code)


def run(code: str) -> str:
    """Run statements in a process of their own; what they print."""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_file_size_limit_on_pages_and_catalog(tmp_path):
    """The kernel itself refuses to let files grow."""
    out = limited(
        tmp_path / "data",
        """
s.create_session(b"s", schema)
put(b"s", 0, 0, b"1" * 6400)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
size = s.info().catalog_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
for what in (lambda: [s.create_session(b"x%d" % n, schema) for n in range(20000)],
             lambda: put(b"s", 1, 0, b"2" * 64 * (size // 16))):
    try:
        what()
    except NoSpace as error:
        print(error.where)
assert bytes(s.rows(b"s", 0, 0, 100).parts[0]) == b"1" * 6400
assert s.rows(b"s", 1, 0, 1) is None
count = s.info().sessions
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
s.create_session(b"after", schema)
put(b"s", 1, 0, b"2" * 64 * (size // 16))
assert s.info().sessions == count + 1
""",
    )
    assert out.split("\n") == ["the catalog", "a page", ""]


def test_no_file_handles_left(tmp_path):
    out = limited(
        tmp_path / "data",
        """
for n in range(30):
    s.create_session(b"s%d" % n, schema)
    put(b"s%d" % n, 0, 0, b"%02d" % n * 32)
    s.rows(b"s%d" % n, 0, 0, 1)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/dev/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
for n in range(30):
    assert bytes(s.rows(b"s%d" % n, 0, 0, 1).parts[0]) == b"%02d" % n * 32
s.create_session(b"new", schema)
put(b"new", 0, 0, b"x" * 64)
assert bytes(s.rows(b"new", 0, 0, 1).parts[0]) == b"x" * 64
writes = []
for n in range(90):
    s.create_session(b"w%d" % n, schema)
try:
    for n in range(90):
        writes.append(s.begin_write(b"w%d" % n, 0, 0, 1))
except NoHandles as error:
    print(error)
views = []
try:
    for n in range(30):
        views.append(s.rows(b"s%d" % n, 0, 0, 1))
except NoHandles as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
views.clear()
[write.abort() for write in writes]
assert bytes(s.rows(b"s0", 0, 0, 1).parts[0]) == b"00" * 32
""",
    )
    assert out == "no file handles left\nno file handles left\n"


def test_the_data_directory_is_its_owners_alone(driver):
    assert driver.path.stat().st_mode & 0o777 == 0o700
    driver.prefix(b"p", layers=1, rows=1)
    assert driver.files[0].stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_written_is_refused_at_open(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    script = f"""
import os
from pionkv.storage import DirectoryError, Store
Store.open({str(tmp_path / "other")!r}).close()
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Store.open({str(path)!r})
except DirectoryError as error:
    print(error.reason)
"""
    for folder in (path, *path.parents):
        if folder.owner() == Path.home().owner() and folder != Path(folder.anchor):
            folder.chmod(0o755)
        if folder == Path("/tmp"):
            break
    path.chmod(0o555)
    assert run(script) == "Permission denied\n"


@pytest.mark.parametrize("name", ["data", "data/pages", "data/catalog", "data/lock/x"])
def test_a_path_that_is_no_directory_is_refused_at_open(tmp_path, name):
    blocked = tmp_path / name
    if name.endswith("/x"):
        blocked = blocked.parent
        blocked.mkdir(parents=True)
    else:
        blocked.parent.mkdir(exist_ok=True)
        blocked.write_text("in the way")
    with pytest.raises(DirectoryError) as caught:
        Store.open(tmp_path / "data")
    assert caught.value.path.startswith(str(tmp_path / "data")) and caught.value.reason


def test_an_open_that_fails_lets_everything_go(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog").write_text("in the way")
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with pytest.raises(DirectoryError):
            Store.open(tmp_path / "data")
    assert len(os.listdir("/dev/fd")) == before
    (tmp_path / "data" / "catalog").unlink()
    Store.open(tmp_path / "data").close()
    assert len(os.listdir("/dev/fd")) == before


def test_errors_of_the_catalog_are_named(session, monkeypatch):
    class Broken:
        def begin(self, **kwargs):
            raise lmdb.CorruptedError("a page is not what it should be")

        def close(self):
            pass

    catalog = session.store._engine.catalog
    monkeypatch.setattr(catalog, "_env", Broken())
    for call in (session.store.info, lambda: session.store.drop_sessions([b"s"])):
        with pytest.raises(CatalogCorrupt, match="not what it should be"):
            call()
    monkeypatch.undo()
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW)


def test_maps_and_open_pages_are_bounded(open_store, schema):
    driver = open_store(StoreOptions(max_maps=5, max_open_pages=4))
    before = len(os.listdir("/dev/fd"))
    for number in range(40):
        name = b"s%d" % number
        driver.store.create_session(name, schema)
        driver.put(name, 0, 0, bytes([number]) * ROW)
        driver.whole(name, 0)
    assert len(os.listdir("/dev/fd")) <= before + 5 + 4
    for number in range(40):
        driver.put(b"s%d" % number, 0, 1, bytes([number]) * ROW)
        assert driver.whole(b"s%d" % number, 0) == bytes([number]) * (2 * ROW)


def test_memory_does_not_grow_with_what_is_stored(tmp_path):
    """Resident anonymous memory, before and after storing and reading 200 MB."""
    out = limited(
        tmp_path / "data",
        """
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
def store_and_read(name, megabytes):
    s.create_session(name, schema)
    for layer in range(megabytes):
        put(name, layer, 0, b"x" * (1 << 20))
        s.rows(name, layer, 0, 16384)
store_and_read(b"warm", 10)
before = anonymous()
store_and_read(b"s", 200)
print(anonymous() - before)
""",
    )
    assert int(out) < 4096, "kilobytes"


def test_limits_of_the_process_are_restored():
    """The tests above lower them in children only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
