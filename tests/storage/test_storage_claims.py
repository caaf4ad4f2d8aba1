"""Claims: one owner at a time, over processes, and never longer than the lease."""

from pionkv.storage import ClaimAnswer

CLAIMED, HELD, HIT = ClaimAnswer.CLAIMED, ClaimAnswer.HELD, ClaimAnswer.HIT


def test_a_claim_lasts_as_long_as_its_lease(driver, clock):
    store = driver.store
    assert not store.is_claimed(b"n")
    assert store.claim(b"n", b"a", 5) is CLAIMED
    clock.now += 4
    assert store.claim(b"n", b"b", 5) is HELD and store.is_claimed(b"n")
    assert store.claim(b"n", b"a", 5) is CLAIMED
    clock.now += 4
    assert store.claim(b"n", b"b", 5) is HELD
    clock.now += 1
    assert not store.is_claimed(b"n")
    assert store.claim(b"n", b"b", 5) is CLAIMED
    assert not store.release_claim(b"n", b"a")
    assert store.release_claim(b"n", b"b")
    assert not store.release_claim(b"n", b"b")


def test_what_can_be_restored_is_not_claimed(driver, clock):
    assert driver.store.claim(b"n", b"a", 5) is CLAIMED
    driver.prefix(b"n", 1, 3)
    assert driver.store.claim(b"n", b"b", 5) is HIT
    driver.store.expire(b"n", clock.now + 10)
    clock.now += 10
    assert driver.store.claim(b"n", b"b", 5) is CLAIMED


def test_claims_that_are_over_are_swept(driver, clock):
    for number in range(10):
        driver.store.claim(b"n%d" % number, b"a", number + 1)
    clock.now += 5
    driver.store.tick()
    with driver.store._engine.catalog.snapshot() as reader:
        assert reader.entries("claims") == 5


def test_other_processes_see_them(driver, open_peer, clock):
    peer = open_peer()
    # The other process has the machine's clock.
    clock.now = 4e9
    assert driver.store.claim(b"n", b"a", 60) is CLAIMED
    assert peer.call("is_claimed", b"n")
    assert not peer.call("release_claim", b"n", b"b")
    assert driver.store.release_claim(b"n", b"a")
    assert not peer.call("is_claimed", b"n")
