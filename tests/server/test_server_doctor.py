"""pionkv doctor: what it says about a data directory, and what it puts right."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
import redis
from pionkv.kernels import LayerSpec
from pionkv.server.doctor import examined, status_of
from pionkv.storage import Schema, Store
from pionkv.storage.keyspace import strings
from server_process import ServerProcess

PIONKV = Path(sys.executable).with_name("pionkv")
SCHEMA = Schema.uniform(LayerSpec("fp16", 32))
ROW, ROWS = 64, 1000


def doctor(path, *flags):
    """What the command finds and answers: its exit status and its report."""
    report = examined(path, "--repair" in flags)
    return status_of(report), json.loads(json.dumps(report))


def command(path, *flags):
    """Run the command itself."""
    return subprocess.run([PIONKV, "doctor", path, *flags], capture_output=True, text=True, timeout=60)


def contents(path):
    """Every file that matters: LMDB notes readers in its lock file."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"}


def kinds(report):
    return sorted(finding["kind"] for finding in report["findings"])


def put(store, name, fill, layers=2):
    store.register(name, SCHEMA, SCHEMA)
    for sid in (name + b"_pk", name + b"_pv"):
        for layer in range(layers):
            with store.begin_write(sid, layer, 0, ROWS) as write:
                while (segment := write.next_segment()) is not None:
                    segment[:] = bytes([fill]) * len(segment)
                write.commit()


def page_of(path, store, sid):
    return Path(store.locate(sid, range(1), 0, 1).mapped[0].places[0].path)


@pytest.fixture
def data(tmp_path):
    """A closed data directory: two prefixes, a state, plain keys; and the page files of the prefixes."""
    path = tmp_path / "data"
    with Store.open(path) as store:
        put(store, b"good", 1)
        put(store, b"bad", 2)
        store.put_state(b"hybrid", 3, b"state" * 1000)
        store.keyspace.change(lambda keys: strings.put(keys, b"small", b"value"))
        store.keyspace.change(lambda keys: strings.put(keys, b"large", b"v" * 100_000))
        pages = {name: page_of(path, store, name + b"_pk") for name in (b"good", b"bad")}
    return path, pages


def without_tables(path, *names):
    """Make a closed directory one of an older build, which did not have these tables."""
    with closing(lmdb.open(str(path / "catalog"), max_dbs=64, map_size=1 << 30)) as env:
        for name in names:
            table = env.open_db(name.encode(), create=False)
            with env.begin(write=True) as txn:
                txn.drop(table)


def flip(page, position=5000):
    raw = bytearray(page.read_bytes())
    raw[position] ^= 1
    page.write_bytes(raw)


def test_a_directory_of_an_older_build_is_named_as_such_and_brought_up_to_date(data) -> None:
    path, _ = data
    without_tables(path, "accounts", "marks")
    before = contents(path)
    status, report = doctor(path)
    (finding,) = report["findings"]
    assert status == 1 and finding["kind"] == "recovery"
    assert "an older pionkv made it, and its table 'marks' is not there yet" in finding["text"]
    assert contents(path) == before
    status, report = doctor(path, "--repair")
    assert status == 0 and report["counts"]["namespaces"] == 3
    assert doctor(path)[1]["findings"] == []


def test_a_server_brings_the_directory_of_an_older_build_up_to_date(data) -> None:
    path, _ = data
    without_tables(path, "accounts", "marks", "untold")
    with closing(ServerProcess(path)) as server:
        server.start()
        with closing(redis.Redis("127.0.0.1", server.port, protocol=2)) as client:
            assert client.get("small") == b"value"
            assert client.execute_command("KV.PREFIX.LOOKUP", "good") == b"HIT"
            client.execute_command("ACL", "SETUSER", "t", "on", "nopass", "tenant=t", "~*", "+@all")
            client.execute_command("AUTH", "t", "any")
            assert client.set("mine", "1") is True
    assert doctor(path)[1]["findings"] == []


def test_nothing_is_wrong(data) -> None:
    path, _ = data
    before = {
        file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"
    }
    status, report = doctor(path)
    assert (status, report["state"], report["findings"]) == (0, "stopped", [])
    counts = report["counts"]
    assert counts["namespaces"] == 3 and counts["sessions"] == 4 and counts["plain keys"] == 2
    assert counts["bytes checked"] == 2 * 2 * 2 * ROWS * ROW + 5000 + 100_000
    after = {
        file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"
    }
    assert after == before, "it only looks"


@pytest.mark.parametrize("damage", ["bit", "short", "missing", "other page"])
def test_a_damaged_page_is_named_and_its_prefix_dropped(damage, data) -> None:
    path, pages = data
    page = pages[b"bad"]
    if damage == "bit":
        flip(page)
    elif damage == "short":
        os.truncate(page, page.stat().st_size - 1)
    elif damage == "missing":
        page.unlink()
    else:
        shutil.copyfile(pages[b"good"], page)
    status, report = doctor(path)
    assert status == 1 and kinds(report) == ["page"]
    finding = report["findings"][0]
    assert finding["subject"] == f"pages/{page.name}" and finding["repair"] == "drops bad"
    assert not finding["repaired"]
    status, report = doctor(path, "--repair")
    assert status == 0 and [finding["repaired"] for finding in report["findings"]] == [True]
    assert doctor(path)[1]["findings"] == []
    with Store.open(path) as store:
        assert store.lookup(b"bad") is None and store.lookup(b"good").tokens == ROWS
        assert bytes(store.rows(b"good_pk", 1, 0, ROWS).parts[0]) == b"\1" * (ROWS * ROW)


def test_a_damaged_plain_value_and_state(data) -> None:
    path, pages = data
    others = [page for page in (path / "pages").iterdir() if page not in pages.values()]
    assert len(others) == 2
    for page in others:
        flip(page)
    status, report = doctor(path)
    assert status == 1 and kinds(report) == ["page", "page"]
    assert {finding["repair"] for finding in report["findings"]} == {"drops hybrid", "drops a plain key"}
    assert doctor(path, "--repair")[0] == 0
    with Store.open(path) as store:
        assert store.keyspace.read(lambda keys: strings.get(keys, b"large")) is None
        assert store.keyspace.read(lambda keys: strings.get(keys, b"small")) == b"value"
        assert store.states(b"hybrid") == []


def test_files_of_nobody_and_foreign_files(data) -> None:
    path, pages = data
    orphan = path / "pages" / "00000bad00000001"
    shutil.copyfile(pages[b"good"], orphan)
    foreign = path / "pages" / "notes.txt"
    foreign.write_text("hello")
    status, report = doctor(path)
    assert status == 1 and kinds(report) == ["leftover", "leftover"]
    status, report = doctor(path, "--repair")
    assert {finding["subject"]: finding["repaired"] for finding in report["findings"]} == {
        f"pages/{orphan.name}": True,
        "pages/notes.txt": False,
    }
    assert status == 1 and foreign.exists() and not orphan.exists()


def test_what_is_in_quarantine(data) -> None:
    path, pages = data
    flip(pages[b"bad"])
    with Store.open(path) as store, pytest.raises(Exception, match="quarantined"):
        store.rows(b"bad_pk", 0, 0, 1)
    assert kinds(doctor(path)[1]) == ["page", "quarantine"]
    assert doctor(path, "--repair")[0] == 0
    with Store.open(path) as store:
        assert store.miss_reason(b"bad") == "absent"


@pytest.mark.parametrize("length", [-1, 20_000])
def test_a_damaged_catalog_is_not_repaired(length, data) -> None:
    path, _ = data
    file = path / "catalog" / "data.mdb"
    os.truncate(file, length if length > 0 else file.stat().st_size + length)
    status, report = doctor(path)
    assert status == 1 and kinds(report) == ["catalog"] and not report["findings"][0]["repair"]
    assert doctor(path, "--repair")[0] == 2


def test_a_catalog_of_noise_does_not_take_the_doctor_down(data) -> None:
    path, _ = data
    file = path / "catalog" / "data.mdb"
    raw = file.read_bytes()
    file.write_bytes(raw[:8192] + b"\xa5" * (len(raw) - 8192))
    done = command(path, "--json")
    assert done.returncode in (1, 2)
    report = json.loads(done.stdout)
    assert "error" in report or kinds(report) == ["catalog"]


def test_a_flipped_record_is_noticed(data) -> None:
    path, _ = data
    with Store.open(path) as store, store._engine.catalog.snapshot() as reader:
        record = reader.get("sessions", b"bad_pk")
    file = path / "catalog" / "data.mdb"
    damaged = record[:30] + bytes([record[30] ^ 1]) + record[31:]
    file.write_bytes(file.read_bytes().replace(record, damaged))
    status, report = doctor(path)
    assert status == 1 and kinds(report) == ["catalog"]


def test_after_the_machine_went_down_it_recovers_first(tmp_path) -> None:
    path = tmp_path / "data"
    store = Store.open(path, boot="first")
    put(store, b"kept", 1)
    store.sync()
    shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock.mdb"))
    store.close()
    status, report = doctor(tmp_path / "copy")
    assert (status, report["state"], kinds(report)) == (1, "crashed", ["recovery"])
    status, report = doctor(tmp_path / "copy", "--repair")
    assert status == 0 and report["counts"]["namespaces"] == 1
    with Store.open(tmp_path / "copy") as store:
        assert store.lookup(b"kept").tokens == ROWS


def test_beside_a_running_server_it_only_reads(start_server, wire_class) -> None:
    server = start_server("--workers", "2")
    wire = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    wire.command("KV.PREFIX.REGISTER", "n", 32, "fp16")
    for side in ("pk", "pv"):
        wire.command("V.STOREBATCH", f"n_{side}", 0, 0, ROWS, bytes(ROWS * 128))
    wire.send(b"*6\r\n$12\r\nV.STOREBATCH\r\n$4\r\nn_pk\r\n$1\r\n1\r\n$1\r\n0\r\n$4\r\n1000\r\n$64000\r\nabc")
    status, report = doctor(server.data_dir)
    assert (status, report["state"], report["findings"]) == (0, "running", [])
    assert report["counts"]["bytes checked"] == 2 * ROWS * ROW
    page = next((server.data_dir / "pages").iterdir())
    (page.parent / "junk").write_bytes(b"x")
    assert doctor(server.data_dir, "--repair")[0] == 2
    (page.parent / "junk").unlink()
    again = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    assert again.command("PING") == "PONG"
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL


def test_what_is_no_data_directory(tmp_path) -> None:
    assert doctor(tmp_path)[0] == 2 and "no data directory" in doctor(tmp_path / "none")[1]["error"]


def test_plain_text(data) -> None:
    path, pages = data
    flip(pages[b"bad"])
    done = command(path)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{path}\nclosed in good order\n")
    assert "bad cannot be served" in done.stdout and "--repair drops bad" in done.stdout
    assert done.stdout.endswith("1 wrong\n")
