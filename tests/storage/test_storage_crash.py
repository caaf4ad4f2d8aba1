"""A machine that goes down: the catalog's file is then any mixture of what was and what should have been."""

import errno
import itertools
import random
import shutil
import threading
from pathlib import Path

import pytest
from pionkv.storage import DirectoryError, Durability, Store, StoreOptions
from pionkv.storage import checkpoint as checkpoint_module
from pionkv.storage.catalog import Catalog
from pionkv.storage.checkpoint import Checkpointer

ROW = 64
BLOCK = 4096
LAYERS, ROWS = 2, 30


@pytest.fixture
def crash(tmp_path):
    """Makes what a disk may hold after a crash: of each block of the catalog, the old or the new version."""
    numbers = itertools.count()

    def make(before: Path, choose) -> str:
        name = f"crashed{next(numbers)}"
        shutil.copytree(tmp_path / "data", tmp_path / name, ignore=shutil.ignore_patterns("lock.mdb"))
        old = before.read_bytes()
        data = tmp_path / name / "catalog" / "data.mdb"
        new = data.read_bytes()
        blocks = [
            (old if choose() else new)[start : start + BLOCK].ljust(BLOCK, b"\0")
            for start in range(0, len(new), BLOCK)
        ]
        data.write_bytes(b"".join(blocks))
        return name

    return make


def keep_catalog(driver, tmp_path) -> Path:
    """A copy of the catalog's file as the disk has it after a sync."""
    return Path(shutil.copyfile(driver.path / "catalog" / "data.mdb", tmp_path / "synced.mdb"))


def store_some(driver, numbers):
    for number in numbers:
        driver.prefix(b"p%02d" % number, LAYERS, ROWS, fill=number)


def state_of(driver):
    return {
        view.namespace: (
            view.tokens,
            [driver.whole(view.namespace + b"_pk", layer)[:1] for layer in range(LAYERS)],
        )
        for view in driver.store.namespaces()
    }


def test_any_mixture_of_blocks_falls_back_to_the_last_sync(open_store, crash, tmp_path):
    driver = open_store(boot="first")
    store_some(driver, range(1, 20))
    driver.store.sync()
    synced = state_of(driver)
    disk = keep_catalog(driver, tmp_path)
    # More than LMDB would need to come round to the pages of the synced state, if nothing held them.
    for fill in range(20, 39):
        store_some(driver, range(40, 45))
        driver.put(b"p%02d_pk" % (fill - 19), 0, ROWS, bytes([fill]) * ROW)
    chance = random.Random(3)
    for share in (0.0, 1.0, *(chance.random() for _ in range(25))):
        name = crash(disk, lambda share=share: chance.random() < share)
        crashed = open_store(name=name, boot="second")
        assert state_of(crashed) == synced
        assert len(crashed.files) == len(synced)
        crashed.prefix(b"after", LAYERS, ROWS)
        crashed.store.close()
        again = open_store(name=name, boot="third")
        assert set(state_of(again)) == {*synced, b"after"}
        again.store.close()


def test_such_a_mixture_is_fatal_without_the_checkpoint(open_store, open_peer, crash, tmp_path):
    """The test above can fail: on the same disks, taken for those of a killed process, LMDB dies or lies."""
    driver = open_store(boot="first")
    store_some(driver, range(1, 20))
    driver.store.sync()
    disk = keep_catalog(driver, tmp_path)
    store_some(driver, range(40, 45))
    chance = random.Random(3)
    outcomes = set()
    for _ in range(5):
        name = crash(disk, lambda: chance.random() < 0.5)
        try:
            peer = open_peer(name=name, boot="first")
            outcomes.add(all(peer.call("hit", b"p%02d" % number) == ROWS for number in range(1, 20)))
        except AssertionError:
            outcomes.add(False)
    assert False in outcomes


def by_steps(store):
    for step in store.sync_steps():
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()


def while_one_is_made(store):
    """One that began before the last commit does not hold it: another has to follow."""
    by_steps(store)


@pytest.mark.parametrize("sync", [Store.sync, by_steps, while_one_is_made])
def test_every_checkpoint_moves_what_a_crash_falls_back_to(sync, open_store, crash, tmp_path):
    driver = open_store(boot="first")
    for number in range(1, 8):
        if sync is while_one_is_made:
            driver.store.tick()
        store_some(driver, [number])
        sync(driver.store)
        disk = keep_catalog(driver, tmp_path)
    store_some(driver, [50])
    crashed = open_store(name=crash(disk, lambda: random.Random(number).random() < 0.5), boot="second")
    assert set(state_of(crashed)) == {b"p%02d" % number for number in range(1, 8)}


def test_ticks_make_checkpoints_in_a_thread(open_store):
    driver = open_store(boot="first")
    driver.store.tick()
    store_some(driver, [1])
    wait_for_checkpoint(driver)
    marker = driver.path / "checkpoint"
    made = marker.read_bytes()
    for _ in range(5):
        driver.store.tick()
        wait_for_thread(driver)
    assert marker.read_bytes() == made, "nothing changed, so nothing is synced"
    store_some(driver, [2])
    wait_for_checkpoint(driver)
    assert marker.read_bytes() != made


def wait_for_thread(driver):
    thread = driver.store._engine.checkpoints._thread
    if thread is not None:
        thread.join()


def wait_for_checkpoint(driver):
    driver.store.tick()
    wait_for_thread(driver)
    driver.store.tick()


def test_processes_take_turns_and_sync_for_each_other(open_store, open_peer, crash, tmp_path):
    there = open_peer()
    driver = open_store()
    there.call("put", b"theirs", 0, 0, b"\5" * ROW)
    driver.store.sync()
    there.call("put", b"theirs", 0, 1, b"\6" * ROW)
    there.call("sync")
    disk = keep_catalog(driver, tmp_path)
    driver.store.tick()
    store_some(driver, range(1, 30))
    crashed = open_store(name=crash(disk, lambda: random.random() < 0.5), boot="second")
    assert state_of(crashed) == {}
    assert crashed.whole(b"theirs", 0) == b"\5" * ROW + b"\6" * ROW


def test_what_was_dropped_since_the_sync_is_dropped(open_store, crash, tmp_path):
    driver = open_store(boot="first")
    store_some(driver, [1, 2])
    driver.store.put_state(b"s", 0, b"state")
    driver.store.sync()
    disk = keep_catalog(driver, tmp_path)
    driver.store.drop_namespaces([b"p01", b"s"])
    crashed = open_store(name=crash(disk, lambda: False), boot="second")
    assert set(state_of(crashed)) == {b"p02"}
    assert crashed.store.info().pages == len(crashed.files) == 1


def test_generations_do_not_repeat_after_a_fall_back(open_store, crash, tmp_path, schema):
    driver = open_store(boot="first")
    store_some(driver, [1])
    driver.store.sync()
    disk = keep_catalog(driver, tmp_path)
    lost = driver.put(b"p01_pk", 0, ROWS, bytes(ROW))
    crashed = open_store(name=crash(disk, lambda: False), boot="second")
    assert crashed.put(b"p01_pk", 0, ROWS, b"\1" * ROW) > lost


def test_nothing_acknowledged_under_always_is_lost(open_store, crash):
    """Every commit was synced, so the disk has all of it."""
    options = StoreOptions(durability=Durability.ALWAYS)
    driver = open_store(options, boot="first")
    store_some(driver, range(1, 6))
    whole = state_of(driver)
    crashed = open_store(
        options, name=crash(driver.path / "catalog" / "data.mdb", lambda: False), boot="second"
    )
    assert state_of(crashed) == whole


def test_under_always_bytes_are_synced_before_the_commit_that_names_them(open_store, monkeypatch, schema):
    driver = open_store(StoreOptions(durability=Durability.ALWAYS))
    driver.store.create_session(b"s", schema)
    calls = []
    catalog = driver.store._engine.catalog
    write = catalog.write
    for module, name in (("filling", "sync_file"), ("filling", "sync_directory")):
        monkeypatch.setattr(f"pionkv.storage.{module}.{name}", lambda what, name=name: calls.append(name))
    monkeypatch.setattr(
        catalog, "write", lambda change, **how: calls.append("commit") or write(change, **how)
    )
    driver.put(b"s", 0, 0, bytes(ROW))
    assert calls == ["sync_file", "sync_directory", "commit"]


@pytest.mark.parametrize("closed", [True, False])
def test_under_none_a_crash_empties_the_directory_and_a_clean_stop_does_not(open_store, tmp_path, closed):
    options = StoreOptions(durability=Durability.NONE)
    driver = open_store(options, boot="first")
    store_some(driver, [1])
    if closed:
        driver.store.close()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    again = open_store(options, name="copy", boot="second")
    assert set(state_of(again)) == ({b"p01"} if closed else set())
    assert len(again.files) == (1 if closed else 0)
    store_some(again, [3])


def test_a_crash_before_the_first_sync_or_with_a_damaged_checkpoint_empties_the_directory(
    open_store, tmp_path
):
    driver = open_store(boot="first")
    store_some(driver, [1])
    driver.store.sync()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    checkpoint = tmp_path / "copy" / "checkpoint"
    damaged = bytearray(checkpoint.read_bytes())
    damaged[100] ^= 1
    checkpoint.write_bytes(damaged)
    again = open_store(name="copy", boot="second")
    assert state_of(again) == {} and again.files == []


def test_a_clean_stop_needs_no_recovery(open_store, tmp_path):
    driver = open_store(boot="first")
    store_some(driver, [1, 2])
    whole = state_of(driver)
    driver.store.close()
    assert not (tmp_path / "data" / "running").exists()
    assert state_of(open_store(boot="second")) == whole


def test_the_durability_may_change_between_runs(open_store):
    whole = None
    for number, durability in enumerate((*Durability, *Durability)):
        driver = open_store(StoreOptions(durability=durability), boot=str(number))
        assert whole is None or state_of(driver) == whole
        store_some(driver, [number])
        whole = state_of(driver)
        driver.store.close()


def test_a_checkpoint_cut_off_while_it_is_written_leaves_the_one_before(open_store, tmp_path, monkeypatch):
    """Whatever of its slot came to the disk; and the one before is gone once the next one is there."""
    driver = open_store(boot="first")
    for number in (1, 2):
        store_some(driver, [number])
        driver.store.sync()
    kept, settled = state_of(driver), (driver.path / "checkpoint").read_bytes()
    half = len(settled) // 2
    assert [checkpoint_module._body(settled[:half]), checkpoint_module._body(settled[half:])].count(None) == 1
    store_some(driver, [3])
    real = checkpoint_module.os.pwrite
    monkeypatch.setattr(checkpoint_module.os, "pwrite", lambda fd, data, at: real(fd, data[:5000], at))
    monkeypatch.setattr(checkpoint_module, "sync_file", refuse)
    with pytest.raises(DirectoryError):
        driver.store.sync()
    monkeypatch.undo()
    assert (driver.path / "checkpoint").read_bytes() != settled
    shutil.copytree(tmp_path / "data", tmp_path / "torn", ignore=shutil.ignore_patterns("lock.mdb"))
    assert state_of(open_store(name="torn", boot="second")) == kept


def refuse(fd: int) -> None:
    raise OSError(errno.EIO, "cut off")


def test_what_others_left_is_synced_before_anything_is_changed(open_store, monkeypatch):
    """A killed process may have lost its hold on its last checkpoint: the first commit could damage that."""
    order = []
    for kind, name in ((Checkpointer, "_write"), (Catalog, "write")):
        real = getattr(kind, name)

        def note(self, *args, real=real, name=name, **options):
            order.append(name)
            return real(self, *args, **options)

        monkeypatch.setattr(kind, name, note)
    open_store()
    assert order[0] == "_write" and "write" in order


def test_every_process_holds_on_to_the_last_checkpoint(open_store, open_peer):
    """Whoever made it may be killed, and its hold go with it."""
    driver = open_store()
    there = open_peer()
    checkpoints = driver.store._engine.checkpoints
    held = set()
    for number in range(1, 9):
        there.call("put", b"s", 0, number - 1, b"\1" * ROW)
        there.call("sync")
        checkpoints._renew_overtaken_pin()
        with driver.store._engine.catalog.snapshot() as reader:
            last = checkpoint_module.last_checkpoint(reader)
        assert checkpoints._pin is not None and checkpoints._pin.id() == checkpoints._pinned <= last
        held.add(checkpoints._pinned)
    assert len(held) > 2, "what was held before is let go"
