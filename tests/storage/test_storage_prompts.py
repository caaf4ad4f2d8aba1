"""The longest stored prefix of some tokens: against a search that looks at every namespace."""

import random

import numpy as np
import pytest
from pionkv.storage import StoreOptions

LENGTHS = (1, 2, 63, 64, 65, 100, 127, 128, 129, 200)


def table(ids):
    return 1, np.asarray(ids, "<u8").tobytes()


def store_prompt(driver, schema, name, ids, rows=None, model=b""):
    driver.store.register(name, schema, schema, blocks=table(ids), model=model)
    for side in (b"_pk", b"_pv"):
        driver.put(name + side, 0, 0, bytes(64 * (len(ids) if rows is None else rows)))


def found(driver, ids, **options):
    match = driver.store.match(np.asarray(ids, np.uint32), **options)
    return None if match is None else (match.record.namespace, match.tokens)


def shared(one, other):
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def prompts(generator, count):
    """Prompts that branch off one another anywhere, near the boundaries of blocks most of all."""
    made = [[generator.randrange(3) for _ in range(200)]]
    while len(made) < count:
        parent = generator.choice(made)
        cut = min(len(parent), generator.choice((0, *LENGTHS)))
        tail = [generator.randrange(3) for _ in range(generator.choice((0, 1, 2, 64, 70)))]
        if parent[:cut] + tail:
            made.append(parent[:cut] + tail)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_every_match_is_the_longest(driver, schema, seed):
    generator = random.Random(seed)
    made = prompts(generator, 60)
    stored = {b"n%d" % number: ids for number, ids in enumerate(made[:40])}
    for name, ids in stored.items():
        store_prompt(driver, schema, name, ids)
    for name in generator.sample(sorted(stored), 10):
        driver.store.drop_namespaces([name])
        del stored[name]
    for asked in (*made, [2] * 300, made[0] + [1] * 65, [0]):
        best = max(shared(ids, asked) for ids in stored.values())
        match = found(driver, asked)
        assert (match[1] if match else 0) == best
        assert not match or stored[match[0]][:best] == asked[:best]
        assert found(driver, asked, fewest=best + 1) is None
        whole = max((len(ids) for ids in stored.values() if ids == asked[: len(ids)]), default=0)
        match = found(driver, asked, whole=True)
        assert (match[1] if match else 0) == whole
        assert not match or stored[match[0]] == asked[:whole]


def test_nothing_is_left_of_what_was_dropped(driver, schema):
    for number in range(5):
        store_prompt(driver, schema, b"n%d" % number, list(range(150)))
    driver.store.drop_namespaces([b"n%d" % number for number in range(5)])
    assert found(driver, range(150)) is None
    with driver.store._engine.catalog.snapshot() as reader:
        assert [reader.entries(name) for name in ("prompts", "models", "blocks")] == [0, 0, 0]


def test_only_what_can_be_read_is_found(driver, schema, clock):
    ids = list(range(100))
    driver.store.register(b"n", schema, schema, blocks=table(ids))
    assert found(driver, ids) is None
    driver.put(b"n_pk", 0, 0, bytes(64 * 100))
    assert found(driver, ids) is None
    driver.put(b"n_pv", 0, 0, bytes(64 * 100))
    assert found(driver, ids) == (b"n", 100)
    driver.store.expire(b"n", clock.now + 5)
    clock.now += 5
    assert found(driver, ids) is None


def test_an_unreadable_prefix_hides_no_other(driver, schema):
    ids = list(range(200))
    store_prompt(driver, schema, b"short", ids[:70])
    driver.store.register(b"long", schema, schema, blocks=table(ids))
    assert found(driver, ids) == (b"short", 70)
    store_prompt(driver, schema, b"part", ids, rows=90)
    assert found(driver, ids) == (b"part", 90)
    assert found(driver, ids, whole=True) == (b"short", 70)


def test_models_are_apart(driver, schema):
    ids = list(range(10))
    store_prompt(driver, schema, b"a", ids, model=b"A")
    assert found(driver, ids) is None and found(driver, ids, model=b"B") is None
    store_prompt(driver, schema, b"b", ids[:5], model=b"B")
    assert found(driver, ids, model=b"A") == (b"a", 10)
    assert found(driver, ids, model=b"B") == (b"b", 5)


def test_cuts_and_forks_take_their_tokens_along(driver, schema):
    ids = list(range(150))
    store_prompt(driver, schema, b"n", ids, model=b"m")
    driver.store.fork(b"n", b"child", 130)
    driver.store.truncate(b"n", 66)
    assert found(driver, ids, model=b"m") == (b"child", 130)
    driver.store.drop_namespaces([b"child"])
    assert found(driver, ids, model=b"m") == (b"n", 66)
    # Rows stored after a cut are of tokens that nobody named.
    for side in (b"_pk", b"_pv"):
        driver.put(b"n" + side, 0, 66, bytes(64 * 40))
    assert found(driver, ids, model=b"m") == (b"n", 66)
    assert driver.store.blocks(b"n") == table(ids[:66])


def test_going_back_to_a_snapshot_cuts_the_tokens(driver, schema):
    ids = list(range(20))
    driver.store.register(b"n", schema, schema, blocks=table(ids))
    for side in (b"_pk", b"_pv"):
        driver.put(b"n" + side, 0, 0, bytes(64 * 8))
    taken = [driver.store.snapshot(b"n" + side) for side in (b"_pk", b"_pv")]
    for side in (b"_pk", b"_pv"):
        driver.put(b"n" + side, 0, 8, bytes(64 * 12))
    assert found(driver, ids) == (b"n", 20)
    for side, snapshot in zip((b"_pk", b"_pv"), taken, strict=True):
        driver.store.restore(b"n" + side, snapshot)
        driver.put(b"n" + side, 0, 8, bytes(64 * 12))
    assert found(driver, ids) == (b"n", 8)


def test_tables_of_other_blocks_are_no_tokens(driver, schema):
    driver.store.register(b"n", schema, schema, blocks=(64, bytes(8 * 3)))
    driver.store.register(b"m", schema, schema, blocks=(1, b"\xff" * 16))
    for name in (b"n", b"m"):
        for side in (b"_pk", b"_pv"):
            driver.put(name + side, 0, 0, bytes(64 * 3))
    assert found(driver, [0, 0, 0]) is None
    assert found(driver, [0xFFFFFFFF, 0xFFFFFFFF]) is None


def test_another_process_finds_it_and_a_dropped_one_is_gone_there_too(driver, open_peer, schema):
    peer = open_peer()
    ids = list(range(80))
    store_prompt(driver, schema, b"n", ids)
    assert peer.call("match", ids) == (b"n", 80)
    assert peer.call("drop_namespaces", [b"n"]) == 1
    assert found(driver, ids) is None


def test_an_evicted_prefix_is_not_found(open_store, schema):
    driver = open_store(StoreOptions(max_bytes=400_000))
    for number in range(40):
        store_prompt(driver, schema, b"n%d" % number, [number] * 300)
    kept = {record.namespace for record in driver.store.namespaces()}
    assert 0 < len(kept) < 40
    for number in range(40):
        expected = (b"n%d" % number, 300) if b"n%d" % number in kept else None
        assert found(driver, [number] * 300) == expected
