"""Several processes on one directory, and processes that die at any moment."""

import contextlib
import fcntl
import random
import sys

import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import DirectoryError, Durability, Schema, StoreOptions, UnknownSession
from pionkv.storage.examine import examine

ROW = 64
HEADER = 4096


def test_what_one_process_stores_another_reads(open_store, open_peer):
    here, there = open_store(), open_peer()
    here.prefix(b"p", layers=2, rows=10)
    assert there.call("hit", b"p") == 10
    assert there.call("get", b"p_pk", 1, 0, 10) == b"\1" * (10 * ROW)
    there.call("put", b"p_pk", 1, 4, b"\2" * (2 * ROW))
    there.call("put", b"p_pk", 1, 10, b"\3" * ROW)
    assert here.whole(b"p_pk", 1) == b"\1" * (4 * ROW) + b"\2" * (2 * ROW) + b"\1" * (4 * ROW) + b"\3" * ROW
    there.call("drop_namespaces", [b"p"])
    assert here.store.lookup(b"p") is None and here.files == []


def test_both_append_to_one_session_in_turn(open_store, open_peer, schema):
    here, there = open_store(), open_peer()
    here.store.create_session(b"s", schema)
    whole = b""
    for row in range(40):
        data = bytes([row]) * ROW
        here.put(b"s", 0, row, data) if row % 3 else there.call("put", b"s", 0, row, data)
        whole += data
        assert here.whole(b"s", 0) == whole
        assert there.call("get", b"s", 0, 0, row + 1) == whole


def test_a_reader_keeps_its_rows_and_then_lets_the_file_go(open_store, open_peer):
    here, there = open_store(), open_peer()
    here.prefix(b"p", layers=1, rows=10)
    there.call("hold", b"p_pk", 0, 0, 10)
    here.store.drop_namespaces([b"p"])
    assert there.call("held") == b"\1" * (10 * ROW)
    assert there.call("mapped") == 1
    there.call("tick")
    assert there.call("mapped") == 0
    assert there.call("held") == b"\1" * (10 * ROW)


def test_uncommitted_pages_of_a_living_process_are_not_swept(open_store, open_peer):
    there = open_peer()
    there.call("begin", b"s", 0, 0, b"\7" * (5 * ROW))
    here = open_store()
    assert len(here.files) == 1
    there.call("commit")
    assert here.whole(b"s", 0) == b"\7" * (5 * ROW)


def test_what_a_killed_process_left_is_swept_by_the_next(open_store, open_peer):
    there = open_peer()
    there.call("put", b"kept", 0, 0, b"\1" * ROW)
    there.call("begin", b"lost", 0, 0, b"\7" * (5 * ROW))
    there.kill()
    here = open_store()
    assert len(here.files) == 1 and here.whole(b"kept", 0) == b"\1" * ROW
    assert here.store.session(b"lost").rows == ()
    assert here.store.info().bytes == HEADER + 4096


def test_the_last_byte_of_room_goes_to_whoever_commits_first(open_store, open_peer, peer_error):
    prefix = HEADER + 512 * ROW
    options = {"max_bytes": 2 * prefix}
    here, there = open_store(StoreOptions(**options)), open_peer(**options)
    there.call("begin", b"a", 0, 0, bytes(1024 * ROW))
    here.prefix(b"b", layers=1, rows=256)
    here.store.pin(b"b")
    with pytest.raises(peer_error, match="OutOfBudget"):
        there.call("commit")
    assert here.store.session(b"a").rows == ()
    here.store.unpin(b"b")
    there.call("put", b"a", 0, 0, b"\1" * (1024 * ROW))
    assert here.store.lookup(b"b") is None
    assert here.store.info().bytes <= options["max_bytes"]


def test_a_catalog_larger_than_a_process_can_see(open_store, open_peer, peer_error, schema):
    here = open_store()
    there = open_peer(catalog_map_bytes=256 * 1024)
    there.call("put", b"s", 0, 0, b"\1" * ROW)
    for number in range(3000):
        here.store.create_session(b"here%06d" % number, schema)
    with pytest.raises(peer_error, match="larger than the address space this process has for it, 262144"):
        there.call("rows", b"s")
    assert here.store.info().sessions == 3001 and here.whole(b"s", 0) == b"\1" * ROW


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_where_address_space_is_scarce_less_is_taken(open_peer):
    there = open_peer(address_space=6 << 30)
    there.call("put", b"s", 0, 0, b"\1" * ROW)
    assert there.call("rows", b"s") == (1,)


def test_processes_must_agree_on_durability(open_store, open_peer):
    open_peer(durability="none")
    with pytest.raises(DirectoryError, match="durability none, asked for everysec"):
        open_store()
    open_store(StoreOptions(durability=Durability.NONE))


def test_everything_acknowledged_survives_kill_9_at_any_moment(open_store, open_peer, check_prefix):
    """Writers are killed at random moments; what they had acknowledged is there, and nothing else is."""
    moments = random.Random(7)
    acknowledged, begun = {}, {}
    for round_ in range(12):
        writers = [open_peer() for _ in range(1 + round_ % 2)]
        for number, writer in enumerate(writers):
            writer.send("write_for_ever", number)
        for writer in writers:
            follow(writer, moments.randrange(1, 40), acknowledged, begun)
        for writer in writers:
            writer.kill()
        for writer in writers:
            follow(writer, None, acknowledged, begun)
        here = open_store()
        for name, (layers, rows) in acknowledged.items():
            if begun[name] == (layers, rows, "done"):
                check_prefix(here, name, layers, rows)
        for view in here.store.namespaces():
            check_prefix(here, view.namespace, *begun[view.namespace][:2], whole=False)
        assert here.store.info().pages == len(here.files)
        here.store.close()


def follow(writer, lines, acknowledged, begun):
    """Note what a writer says, for so many lines or until it has said everything."""
    count = 0
    while lines is None or count < lines:
        line = None
        with contextlib.suppress(ValueError, SyntaxError):
            line = writer.line()
        if line is None:
            return
        what, name, layers, rows = line
        begun[name] = (layers, rows, what)
        if what == "done":
            acknowledged[name] = (layers, rows)
        count += 1


@pytest.fixture
def check_prefix():
    """Whether a prefix that a writer stored holds its own rows, all of them if `whole`."""

    def pattern(name, layer, count):
        return b"".join(b"%-4s%02d%02d" % (name[:4], layer, row % 100) * 8 for row in range(count))

    def check(driver, name, layers, rows, whole=True):
        for side in (b"_pk", b"_pv"):
            held = driver.store.session(name + side).rows
            assert not whole or held == (rows,) * layers
            for layer, count in enumerate(held):
                assert driver.get(name + side, layer, 0, count) == pattern(name, layer, count)

    return check


def test_a_process_that_has_its_turn_at_checkpoints_does_not_wait_for_another(open_peer, tmp_path):
    """One closes and waits for its turn; the other, whose turn it is, closes too: both end."""
    first, second = open_peer(), open_peer()
    first.call("put", b"s", 0, 0, b"\1" * ROW)
    first.call("tick")
    second.call("put", b"s", 0, 1, b"\2" * ROW)
    second.process.stdin.close()
    with (tmp_path / "data" / "opening").open() as opening, contextlib.suppress(BlockingIOError):
        while second.process.poll() is None:
            fcntl.flock(opening, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(opening, fcntl.LOCK_UN)
    first.process.stdin.close()
    assert [peer.process.wait(60) for peer in (first, second)] == [0, 0]


def test_a_unit_evicted_while_another_process_writes_to_it(open_store, open_peer, peer_error):
    """The commit is refused, nothing of the write is left, and it can be begun again."""
    options = {"max_bytes": 1 << 20}
    here, there = open_store(StoreOptions(**options)), open_peer(**options)
    for layer in range(10):
        # The more bytes a token takes, the sooner it goes.
        there.call("put", b"a", layer, 0, b"\1" * (100 * ROW))
    there.call("begin", b"a", 0, 100, b"\2" * (50 * ROW))
    for number in range(20):
        here.prefix(b"p%02d" % number, layers=1, rows=800)
    with pytest.raises(UnknownSession):
        here.store.session(b"a")
    with pytest.raises(peer_error) as caught:
        there.call("commit")
    assert caught.value.args[0] == "UnknownSession"
    there.call("put", b"a", 0, 0, b"\3" * (70 * ROW))
    assert here.whole(b"a", 0) == b"\3" * (70 * ROW)
    assert here.store.info().bytes <= options["max_bytes"]
    assert there.close() == 0
    assert here.store.info().pages == len(here.files)
    here.store.close()
    assert examine(here.path).findings == []


def test_a_unit_evicted_and_made_anew_while_another_process_writes_to_it(open_store, open_peer, peer_error):
    here, there = open_store(), open_peer()
    there.call("put", b"a", 0, 0, b"\1" * (100 * ROW))
    there.call("begin", b"a", 0, 100, b"\2" * (50 * ROW))
    here.store.drop_sessions([b"a"])
    here.store.create_session(b"a", Schema.uniform(LayerSpec("fp16", 32)))
    here.put(b"a", 0, 0, b"\3" * (100 * ROW))
    with pytest.raises(peer_error) as caught:
        there.call("commit")
    assert caught.value.args[0] == "Stale"
    assert here.whole(b"a", 0) == b"\3" * (100 * ROW)
