"""Places that groups share, and take in turns."""

from __future__ import annotations

import asyncio

from regroup_operator.informer.fair_places import FairPlaces


class Holders:
    """Tasks that hold a place until they are let go, in the order in which they got one."""

    def __init__(self, places: FairPlaces) -> None:
        self._places = places
        self.got: list[str] = []
        self._done: list[asyncio.Event] = []

    async def add(self, group: str) -> asyncio.Task[None]:
        """Another one of a group."""
        task = asyncio.create_task(self._hold(group))
        await asyncio.sleep(0)
        return task

    async def _hold(self, group: str) -> None:
        async with self._places.place(group):
            self.got.append(group)
            done = asyncio.Event()
            self._done.append(done)
            await done.wait()

    async def let_go(self, position: int) -> None:
        """End the one that got the place of this position."""
        self._done[position].set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_one_group_leaves_places_to_others_however_many_it_asks_for() -> None:
    holders = Holders(FairPlaces(4, 2))
    tasks = [await holders.add("a") for _ in range(9)]
    assert holders.got == ["a", "a"]
    tasks += [await holders.add("b")]
    assert holders.got == ["a", "a", "b"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_groups_that_wait_take_turns() -> None:
    holders = Holders(FairPlaces(1, 1))
    tasks = [await holders.add(group) for group in ("a", "a", "a", "a", "b", "b", "c")]
    for position in range(len(tasks)):
        await holders.let_go(position)
    assert holders.got == ["a", "a", "b", "c", "a", "b", "a"]
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_keeps_no_place() -> None:
    holders = Holders(FairPlaces(1, 1))
    first, second, third = [await holders.add(group) for group in ("a", "b", "c")]
    second.cancel()
    await holders.let_go(0)
    assert holders.got == ["a", "c"]
    fourth = await holders.add("d")
    await holders.let_go(1)
    assert holders.got == ["a", "c", "d"]
    await holders.let_go(2)
    await asyncio.gather(first, third, fourth)


async def test_a_place_that_was_given_to_one_that_gives_up_before_it_runs_goes_on() -> None:
    places = FairPlaces(1, 1)
    holders = Holders(places)
    async with places.place("a"):
        second, third = [await holders.add(group) for group in ("b", "c")]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await asyncio.sleep(0)
    assert holders.got == ["c"]
    await holders.let_go(0)
    await third
