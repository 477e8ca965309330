"""Whose turn it is: lines of addresses, jobs that go together, costly ones that leave a thread free."""

import asyncio
from threading import Event

import pytest

from splitmix.serve.limits import ServerLimits
from splitmix.serve.turns import BusyError, Crew, Turns


def test_lines_take_turns_and_what_may_not_start_is_passed_over():
    turns = Turns[str]()
    for item in ("a1", "a2", "b1", "a3", "c1"):
        turns.add(item[0], item)
    assert turns.next(lambda item: item[0] != "a") == "b1"
    assert [turns.next() for _ in range(5)] == ["a1", "c1", "a2", "a3", None]


def test_what_is_alike_goes_along_from_all_lines_and_the_rest_keeps_its_order():
    turns = Turns[str]()
    for item in ("a1", "a2", "a1", "b1", "b2", "c1"):
        turns.add(item[0], item)
    assert turns.take(lambda item: item[1] == "1", 3) == ["a1", "a1", "b1"]
    assert [turns.next() for _ in range(len(turns))] == ["a2", "b2", "c1"]


def behind(wishes, limits):
    """What comes of wishes, each (who, key, given), that had to wait until the only threads were free."""
    batches = []

    def halves(given):
        batches.append(list(given))
        return [2 / each for each in given]

    async def ask():
        crew, free = Crew(limits), Event()
        held = [asyncio.create_task(crew.run(lambda: free.wait(1200))) for _ in range(limits.threads)]
        await asyncio.sleep(0)
        asked = [asyncio.create_task(crew.run_together(halves, g, key=key, who=who)) for who, key, g in wishes]
        await asyncio.sleep(0)
        free.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.gather(*held)
        crew.close()
        return found

    return asyncio.run(ask()), batches


ONE = ServerLimits(rate=0, threads=1)


def test_what_waits_with_the_same_dial_is_done_in_one_go():
    wishes = [("a", "wide", 1), ("a", "narrow", 2), ("b", "wide", 4), ("c", "wide", 8)]
    found, batches = behind(wishes, ONE)
    assert found == [2, 1, 0.5, 0.25]
    assert batches == [[1, 4, 8], [2]]


def test_what_arrives_together_goes_together_though_threads_are_free():
    sizes = []

    def noted(given):
        sizes.append(len(given))
        return given

    async def ask():
        crew = Crew(ServerLimits(rate=0, threads=2))
        await asyncio.gather(*(crew.run_together(noted, i, key="wide", who="a") for i in range(8)))
        crew.close()

    asyncio.run(ask())
    assert sizes == [8]


def test_a_batch_has_its_limit():
    _, batches = behind([("a", "wide", i + 1) for i in range(5)], ServerLimits(rate=0, threads=1, batch=2))
    assert batches == [[1, 2], [3, 4], [5]]


def test_one_that_fails_does_not_spoil_the_others_of_its_batch():
    found, _ = behind([("a", "wide", 1), ("evil", "wide", 0), ("b", "wide", 2)], ONE)
    assert (found[0], found[2]) == (2, 1)
    assert isinstance(found[1], ZeroDivisionError)


def test_one_address_that_asks_too_much_is_told_so_and_the_others_are_not():
    wishes = [*[("a", i, 1) for i in range(6)], ("b", "wide", 2)]
    found, _ = behind(wishes, ServerLimits(rate=100, threads=1, each=4))
    assert found[:4] == [2] * 4
    assert [error.status for error in found[4:6]] == [429, 429]
    assert found[6] == 1


def test_what_comes_at_one_moment_waits_only_where_no_thread_is_free():
    async def ask():
        crew = Crew(ServerLimits(rate=100, threads=2))
        at_once = [crew.run(lambda: "done", who="a", costly=True, most=2) for _ in range(4)]
        found = await asyncio.gather(*at_once, return_exceptions=True)
        crew.close()
        return found

    *done, refused = asyncio.run(ask())
    assert done == ["done"] * 3  # one runs, two wait
    assert refused.status == 429


def test_what_waits_when_the_server_stops_is_given_up():
    async def stop():
        crew, free = Crew(ONE), Event()
        runs = asyncio.create_task(crew.run(lambda: free.wait(1200)))
        waits = asyncio.create_task(crew.run(lambda: None))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(free.set)
        await asyncio.sleep(0)
        crew.close()
        return await asyncio.gather(runs, waits, return_exceptions=True)

    done, given_up = asyncio.run(stop())
    assert (done, type(given_up)) == (True, asyncio.CancelledError)


def test_more_than_may_wait_is_too_much_for_all():
    found, _ = behind([(str(i), i, 1) for i in range(3)], ServerLimits(rate=0, threads=1, waiting=2))
    assert found[:2] == [2, 2]
    with pytest.raises(BusyError, match="waiting"):
        raise found[2]
