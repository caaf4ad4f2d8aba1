"""A coroutine begun outside of a task and finished in one."""

from __future__ import annotations

import asyncio

import pytest
from pionkv.server.eager import Done, begin


def test_a_coroutine_that_never_waits_is_done_at_once() -> None:
    async def work():
        return 7

    assert begin(work()) == Done(7)


def test_an_error_before_the_first_wait_is_raised_at_once() -> None:
    async def work():
        raise KeyError("x")

    with pytest.raises(KeyError):
        begin(work())


def run(make):
    """What a coroutine makes of a future, a turn of the loop and a thread, begun eagerly."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        seen = []
        rest = begin(make(future, seen))
        assert not isinstance(rest, Done)
        before = list(seen)
        task = asyncio.get_running_loop().create_task(rest)
        await asyncio.sleep(0)
        return before, future, task, seen

    return main


def test_it_goes_on_where_it_waited() -> None:
    async def work(future, seen):
        seen.append("begun")
        seen.append(await future)
        await asyncio.sleep(0)
        seen.append(await asyncio.to_thread(lambda: "thread"))
        return "end"

    async def main():
        before, future, task, seen = await run(work)()
        assert before == seen == ["begun"]
        future.set_result("answer")
        assert await task == "end"
        assert seen == ["begun", "answer", "thread"]

    asyncio.run(main())


def test_an_error_of_what_it_waited_for_reaches_it() -> None:
    async def work(future, seen):
        try:
            await future
        except ValueError as error:
            seen.append(str(error))
        raise KeyError("its own")

    async def main():
        _, future, task, seen = await run(work)()
        future.set_exception(ValueError("theirs"))
        with pytest.raises(KeyError, match="its own"):
            await task
        assert seen == ["theirs"]

    asyncio.run(main())


def test_cancelling_the_task_cancels_it() -> None:
    async def work(future, seen):
        try:
            await future
        finally:
            seen.append("cleaned up")

    async def main():
        _, _, task, seen = await run(work)()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cleaned up"]

    asyncio.run(main())
