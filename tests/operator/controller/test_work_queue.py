"""The work queue: one key at a time, in turn, later after failures, never lost."""

from __future__ import annotations

import asyncio

import pytest

from regroup_operator.controller import work_queue
from regroup_operator.controller.work_queue import Urgency, WorkQueue
from tests.support.waiting import until


def make_queue(most: int = 100) -> WorkQueue[str]:
    """Keys are grouped by their first letter; at most so many of a group are worked on."""
    return WorkQueue(group_of=lambda key: key[0], most_of_a_group=most)


async def test_a_key_that_waits_is_handed_out_once() -> None:
    queue = make_queue()
    queue.add("a")
    queue.add("a")
    assert (await queue.take())[0] == "a"
    assert len(queue) == 0


async def test_a_key_added_while_it_is_worked_on_runs_again_afterwards() -> None:
    queue = make_queue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    assert len(queue) == 0, "two workers never have one key"
    queue.done("a")
    assert (await queue.take())[0] == "a"


async def test_a_failed_key_comes_back_later_each_time_and_a_success_forgets() -> None:
    queue = make_queue()
    pauses = []
    loop = asyncio.get_running_loop()
    for _ in range(3):
        queue.add("a")
        await queue.take()
        queue.done("a", failed=True)
        pauses.append(queue._timers["a"].when() - loop.time())
    assert pauses == pytest.approx([0.2, 0.4, 0.8], abs=0.05)
    queue.add("a")
    await queue.take()
    queue.done("a")
    assert queue._failures == {}
    queue.close()


async def test_what_is_waited_for_is_looked_at_after_each_key() -> None:
    queue, ended = make_queue(), list[str]()
    for key in "abc":
        queue.add(key)
    waiting = asyncio.create_task(queue.until(lambda: len(ended) == 2))
    for _ in "ab":
        key, _waited = await queue.take()
        await asyncio.sleep(0)
        assert not waiting.done()
        ended.append(key)
        queue.done(key, failed=key == "a")
    async with asyncio.timeout(5):
        await waiting
    queue.close()


REST = 0.3


async def test_events_of_a_key_that_rests_become_one_turn_at_the_end_of_its_rest() -> None:
    queue, loop = make_queue(), asyncio.get_running_loop()
    queue.add("a")
    await queue.take()
    queue.add("a")
    began = loop.time()
    queue.done("a", rest=REST)
    for _ in range(3):
        queue.add("a")
    assert len(queue) == 0
    async with asyncio.timeout(60):
        assert (await queue.take())[0] == "a"
    assert loop.time() - began >= REST
    queue.done("a")
    assert (len(queue), queue._timers, queue._resting) == (0, {}, {})


async def test_a_key_to_which_something_happened_while_it_rested_goes_before_new_ones() -> None:
    queue = make_queue()
    queue.add("a begun")
    await queue.take()
    queue.done("a begun", rest=0.01)
    queue.add("a begun")
    for number in range(5):
        queue.add(f"a new {number}", Urgency.NEW)
    await until("the end of the rest", lambda: len(queue) == 6)
    assert (await queue.take())[0] == "a begun"
    assert queue._later == {}


@pytest.mark.parametrize("failed", [True, False])
async def test_another_try_of_what_is_urgent_goes_before_what_has_waited(failed: bool) -> None:
    queue = make_queue()
    queue.add("a", Urgency.LOST)
    await queue.take()
    if not failed:
        queue.add_after("a", 0.05, Urgency.LOST)
    queue.done("a", failed=failed, urgency=Urgency.LOST, rest=0.01)
    for number in range(5):
        queue.add(f"a{number}")
    await until("another try", lambda: len(queue) == 6)
    assert (await queue.take())[0] == "a"
    assert queue._later == {}
    queue.close()


@pytest.mark.parametrize("during", ["its turn", "its rest"])
async def test_a_loss_ends_a_rest_at_once(during: str) -> None:
    queue = make_queue()
    queue.add("a")
    await queue.take()
    if during == "its turn":
        queue.add("a", Urgency.LOST)
    queue.done("a", rest=60)
    if during == "its rest":
        queue.add("a")
        queue.add("a", Urgency.LOST)
    assert len(queue) == 1
    await queue.take()
    queue.done("a")
    queue.close()


async def test_a_key_that_wants_another_turn_itself_need_not_rest() -> None:
    queue = make_queue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    queue.done("a", rest=3600)
    queue.add_after("a", 0.0)
    async with asyncio.timeout(60):
        assert (await queue.take())[0] == "a"
    queue.close()


@pytest.mark.parametrize("when", ["while it is worked on", "afterwards"])
async def test_only_a_patient_addition_waits_for_the_end_of_the_back_off(when: str) -> None:
    queue = make_queue()
    for patient in (True, False):
        queue.add("a")
        await queue.take()
        if when == "afterwards":
            queue.done("a", failed=True)
        queue.add("a", patient=patient)
        if when != "afterwards":
            queue.done("a", failed=True)
        assert len(queue) == (not patient)
    queue.close()


async def test_a_failed_key_that_was_added_meanwhile_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "LONGEST_PAUSE_SECONDS", 0.0)
    queue = make_queue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    queue.done("a", failed=True)
    await queue.take()
    queue.done("a")
    assert len(queue) == 0
    assert not queue._timers, "nor does it come back later"


async def test_a_patient_addition_runs_after_a_success() -> None:
    queue = make_queue()
    queue.add("a")
    await queue.take()
    queue.add("a", patient=True)
    queue.done("a")
    assert len(queue) == 1


async def test_what_happened_goes_before_what_is_looked_at_again_and_does_not_starve_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = make_queue()
    for number in range(100):
        queue.add(f"routine {number}", Urgency.ROUTINE)
    queue.add("lost a pod")
    queue.add("routine 7")
    queue.add("lost a pod", Urgency.ROUTINE)
    assert len(queue) == 101
    taken = [(await queue.take())[0] for _ in range(101)]
    assert taken[:3] == ["lost a pod", "routine 7", "routine 0"]
    assert len(set(taken)) == 101
    monkeypatch.setattr(work_queue, "PATIENT_SECONDS", 0.0)
    queue = make_queue()
    for number in range(2):
        queue.add(f"routine {number}", Urgency.ROUTINE)
        queue.add(f"later {number}")
    taken = [(await queue.take())[0] for _ in range(4)]
    assert taken == ["routine 0", "later 0", "routine 1", "later 1"]


async def test_a_lost_pod_goes_first_and_within_a_group_new_jobs_go_last() -> None:
    queue = make_queue()
    for key in ("a1", "a2", "b1"):
        queue.add(key, Urgency.NEW)
    for key in ("a3", "a4"):
        queue.add(key)
    queue.add("a5", Urgency.LOST)
    queue.add("a2", Urgency.LOST)
    queue.add("a2", Urgency.ROUTINE)
    assert [(await queue.take())[0] for _ in range(6)] == ["a5", "a2", "a3", "b1", "a4", "a1"]


async def test_the_greatest_urgency_of_what_came_while_a_key_was_worked_on_counts() -> None:
    queue = make_queue()
    queue.add("a1")
    await queue.take()
    for urgency in (Urgency.ROUTINE, Urgency.LOST, Urgency.NEW):
        queue.add("a1", urgency)
    queue.add("a2")
    queue.done("a1")
    assert (await queue.take())[0] == "a1"


async def test_what_has_waited_for_long_takes_every_second_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "PATIENT_SECONDS", 0.0)
    queue = make_queue()
    queue.add("changed")
    queue.add("routine", Urgency.ROUTINE)
    for number in range(3):
        queue.add(f"lost {number}", Urgency.LOST)
    taken = [(await queue.take())[0] for _ in range(5)]
    assert taken == ["changed", "lost 0", "routine", "lost 1", "lost 2"]


async def test_a_new_key_that_has_waited_for_long_is_not_starved_by_those_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "PATIENT_SECONDS", 0.0)
    queue = make_queue()
    for key in ("a new", "a newer"):
        queue.add(key, Urgency.NEW)
    taken = []
    for number in range(5):
        queue.add(f"a begun {number}")
        taken.append((await queue.take())[0])
        queue.done(taken[-1])
    assert taken == ["a new", "a begun 0", "a newer", "a begun 1", "a begun 2"]


async def test_a_new_key_waits_for_the_keys_that_have_begun_only_so_long() -> None:
    queue = make_queue()
    queue.add("a new", Urgency.NEW)
    queue.add("a begun")
    assert (await queue.take())[0] == "a begun"


async def test_the_sooner_of_two_times_counts() -> None:
    queue = make_queue()
    queue.add_after("a", 100)
    queue.add_after("a", 0.01)
    queue.add_after("a", 50)
    key, _ = await asyncio.wait_for(queue.take(), 5)
    assert key == "a"


async def test_keys_of_objects_that_are_gone_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was deleted has a last turn, and rests after it like all others."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    queue = make_queue()
    for number in range(1_000):
        queue.add(f"a{number}")
        key, _ = await queue.take()
        queue.done(key, rest=0.1)
        now += 0.05
    assert len(queue._resting) <= 3
    assert not (queue._added or queue._working or queue._again or queue._timers or queue._failures)


async def test_a_group_with_many_keys_delays_another_by_one_key() -> None:
    queue = make_queue()
    for number in range(1_000):
        queue.add(f"a{number}")
    await queue.take()
    for key in ("b1", "b2", "c1"):
        queue.add(key)
    assert [(await queue.take())[0] for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert len(queue) == 996


async def test_a_group_that_comes_back_waits_for_its_turn() -> None:
    queue = make_queue()
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    taken = []
    for _ in range(4):
        key, _waited = await queue.take()
        taken.append(key)
        queue.done(key)
        if key == "b1":
            queue.add("b1")
    assert taken == ["a1", "b1", "a2", "b1"]


async def test_a_group_whose_keys_take_long_leaves_workers_for_others() -> None:
    queue = make_queue(most=2)
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    assert [(await queue.take())[0] for _ in range(3)] == ["a1", "b1", "a2"]
    waiting = asyncio.create_task(queue.take())
    queue.add("b2")
    assert (await waiting)[0] == "b2", "the third of the first group waits for one of its own"
    waiting = asyncio.create_task(queue.take())
    queue.done("a1")
    assert (await waiting)[0] == "a3"
    assert len(queue) == 0


async def test_what_is_looked_at_again_waits_like_all_keys_of_its_group() -> None:
    queue = make_queue(most=1)
    queue.add("a1", Urgency.ROUTINE)
    assert (await queue.take())[0] == "a1"
    queue.add("a2", Urgency.ROUTINE)
    queue.add("b1", Urgency.ROUTINE)
    assert (await queue.take())[0] == "b1"
    assert len(queue) == 1
    queue.done("b1")
    queue.done("a1")
    assert (await queue.take())[0] == "a2"


async def test_a_taker_that_is_cancelled_loses_no_key() -> None:
    queue = make_queue()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await asyncio.wait_for(queue.take(), 1.0))[0] == "a"
