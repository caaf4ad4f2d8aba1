"""How long a client waits, and when it does not ask at all."""

import pytest
from client_peers import Clock
from pionkv.client.admission import MOST_NAMES, Admission
from pionkv.client.breaker import Breaker
from pionkv.client.deadline import Deadline
from pionkv.client.errors import TimedOut


def test_a_wait_is_bounded_by_silence_then_by_what_is_left(clock: Clock) -> None:
    deadline = Deadline(10, 2, clock=clock)
    assert deadline.wait() == 2
    clock.now += 9
    assert deadline.wait() == pytest.approx(1)
    clock.now += 1
    with pytest.raises(TimedOut, match="10 s"):
        deadline.wait()


def test_a_part_of_an_exchange_never_outlasts_the_whole(clock: Clock) -> None:
    deadline = Deadline(10, 5, clock=clock)
    assert deadline.within(1).wait() == pytest.approx(1)
    clock.now += 9.5
    assert deadline.within(1).wait() == pytest.approx(0.5)


def test_a_breaker_pauses_longer_after_each_failure_and_closes_at_a_success(clock: Clock) -> None:
    breaker = Breaker(1, 3, clock=clock)
    assert breaker.allows()
    pauses = []
    for _ in range(4):
        breaker.failed()
        begin = clock.now
        assert not breaker.allows()
        while not breaker.allows():
            clock.now += 0.25
        pauses.append(clock.now - begin)
    assert pauses == [1, 2, 3, 3]
    breaker.succeeded()
    assert breaker.allows()
    breaker.failed()
    clock.now += 1
    assert breaker.allows()


def test_a_name_is_admitted_at_the_miss_that_reaches_the_threshold() -> None:
    admission = Admission(3)
    assert [admission.admits("a") for _ in range(3)] == [False, False, True]
    assert not admission.admits("b")
    admission.forget("a")
    assert not admission.admits("a")


def test_the_memory_of_misses_is_bounded_and_keeps_the_newest() -> None:
    admission = Admission(2)
    admission.admits("old")
    for index in range(MOST_NAMES):
        admission.admits(f"n{index}")
    assert not admission.admits("old")
    assert admission.admits(f"n{MOST_NAMES - 1}")
