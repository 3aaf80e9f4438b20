"""Replicas beside a model of the API server: whatever is late or lost, however their clocks drift,
two never may act at once, and in the end one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from regroup_operator.leadership.candidacy import (
    ACT_SECONDS,
    LEASE_SECONDS,
    LONGEST_SECONDS,
    MOST_TRANSITIONS,
    Candidacy,
    Lease,
    read_lease,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOST = 2**31 - 1
"""The largest int32."""
RATES = (0.9, 1.0, 1.1)
"""Seconds of a clock in a second."""


def held(holder: str, version: str = "1", **fields: Any) -> Lease:
    """The Lease, held by this replica."""
    return Lease(uid="u", version=version, holder=holder, **fields)


# --- one replica ----------------------------------------------------------------------------------


def test_a_lease_that_was_never_there_is_free() -> None:
    assert Candidacy("a").seen(None, 5.0).may_write(5.0)


def test_a_lease_that_was_given_back_is_free() -> None:
    assert Candidacy("a").seen(held(""), 5.0).may_write(5.0)


def test_a_lease_is_taken_when_it_has_not_changed_for_its_time() -> None:
    standby = Candidacy("b").seen(held("a"), 100.0)
    assert not standby.may_write(100.0 + LEASE_SECONDS - 0.1)
    standby = standby.seen(held("a"), 110.0)
    assert standby.may_write(100.0 + LEASE_SECONDS)
    standby = standby.seen(held("a", version="2", renewed="later"), 114.0)
    assert not standby.may_write(114.0 + LEASE_SECONDS - 0.1)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"holderIdentity": None, "leaseDurationSeconds": None, "renewTime": None},
        {"holderIdentity": "", "leaseDurationSeconds": MOST, "leaseTransitions": MOST},
        {"holderIdentity": "x"},
        {"holderIdentity": "x", "renewTime": "2999-01-01T00:00:00.000000Z"},
        {"holderIdentity": "x", "renewTime": "yesterday", "acquireTime": "never"},
        {"holderIdentity": "x", "leaseDurationSeconds": 0},
        {"holderIdentity": "x", "leaseDurationSeconds": -5, "leaseTransitions": -5},
        {"holderIdentity": "x", "leaseDurationSeconds": MOST, "leaseTransitions": MOST},
    ],
    ids=str,
)
def test_whatever_a_lease_says_it_is_taken_and_renewed_after_a_minute_without_renewal(
    spec: Any,
) -> None:
    replica, now = Candidacy("b"), 0.0
    metadata = {"uid": "u", "resourceVersion": "0"}
    for version in range(1, 70):  # somebody writes a label each second
        now, metadata["resourceVersion"] = float(version), str(version)
        replica = replica.seen(read_lease({"metadata": metadata, "spec": spec}), now)
        if replica.may_write(now):
            break
    assert replica.may_write(now)
    assert now <= 1.0 + LONGEST_SECONDS
    for _ in range(3):
        written = replica.spec(NOON)
        assert 0 <= written["leaseTransitions"] <= MOST_TRANSITIONS
        replica = replica.wrote(read_lease({"metadata": metadata, "spec": written}), now)
    assert replica.leads(now)


@pytest.mark.parametrize("seconds", [0, -3600, 1e-6])
def test_others_see_each_renewal_whatever_the_wall_clock_shows(seconds: float) -> None:
    leader, seen = Candidacy("a"), set()
    for number in range(5):
        leader = leader.seen(None, 0.0) if not number else leader
        written = leader.spec(NOON + number * timedelta(seconds=seconds))
        metadata = {"uid": "u", "resourceVersion": str(number)}
        leader = leader.wrote(read_lease({"metadata": metadata, "spec": written}), 1.0)
        seen.add(written["renewTime"])
    assert len(seen) == 5


def test_another_release_may_hold_the_lease_for_longer_but_not_for_less() -> None:
    assert not Candidacy("b").seen(held("a", seconds=60), 0.0).may_write(59.0)
    assert not Candidacy("b").seen(held("a", seconds=1), 0.0).may_write(LEASE_SECONDS - 0.1)


def test_a_lease_that_somebody_deletes_is_left_to_its_holder_as_long() -> None:
    standby = Candidacy("b").seen(held("a"), 0.0).seen(None, 50.0).seen(None, 60.0)
    assert not standby.may_write(50.0 + LEASE_SECONDS - 0.1)
    assert standby.may_write(50.0 + LEASE_SECONDS)
    leader = Candidacy("a").wrote(held("a"), 49.0).doubted().seen(None, 50.0)
    assert leader.may_write(50.0)


def test_a_leader_acts_for_a_time_that_begins_with_the_sending_of_its_write() -> None:
    leader = Candidacy("a").wrote(held("a"), 100.0)
    assert leader.leads(100.0 + ACT_SECONDS - 0.1)
    assert not leader.leads(100.0 + ACT_SECONDS)
    assert not leader.retired().leads(100.0)


def test_a_leader_that_sees_another_one_acts_no_more() -> None:
    assert not Candidacy("a").wrote(held("a"), 100.0).seen(held("b", "2"), 101.0).leads(101.0)


def test_a_write_without_an_answer_gives_no_right_and_is_made_again() -> None:
    waiting = Candidacy("a").seen(held("z"), 0.0).doubted().seen(held("a", "2"), 20.0)
    assert not waiting.leads(20.0)
    assert waiting.may_write(20.0)


def test_the_lease_says_for_people_who_holds_it_since_when() -> None:
    first = Candidacy("a").seen(None, 0.0).spec(NOON)
    assert first == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T12:00:00.000000Z",
        "renewTime": "2026-01-01T12:00:00.000000Z",
        "leaseTransitions": 0,
    }
    kept = held("a", acquired="2026-01-01T11:00:00.000000Z", transitions=3)
    renewed = Candidacy("a").seen(kept, 0.0).spec(NOON)
    assert (renewed["acquireTime"], renewed["leaseTransitions"]) == (kept.acquired, 3)
    taken = Candidacy("b").seen(kept, 0.0).spec(NOON)
    assert (taken["acquireTime"], taken["leaseTransitions"]) == (first["acquireTime"], 4)


def test_a_lease_that_somebody_made_by_hand_is_read() -> None:
    metadata = {"uid": "u", "resourceVersion": "7"}
    assert read_lease({"metadata": metadata}) == Lease("u", "7")
    assert read_lease({"metadata": metadata, "spec": {"holderIdentity": "x"}}).holder == "x"


# --- several replicas -----------------------------------------------------------------------------


@dataclass
class Request:
    """What a replica has asked for."""

    replica: int
    identity: str
    sent_at: float
    """By the clock of the replica."""
    spec: dict[str, Any] | None = None
    """None: a read."""
    present: Lease | None = None
    answer: Lease | None = None
    is_refused: bool = False
    is_carried_out: bool = False


class Election(RuleBasedStateMachine):
    """Times are true seconds, but those that replicas see."""

    @initialize(rates=st.lists(st.sampled_from(RATES), min_size=2, max_size=3))
    def begin(self, rates: list[float]) -> None:
        self.now = 0.0
        self.rates = rates
        self.lease: Lease | None = None
        self.count = 0
        self.replicas = [self._new() for _ in rates]
        self.requests: list[Request] = []

    def _new(self) -> Candidacy:
        self.count += 1
        return Candidacy(f"r{self.count}")

    def _clock(self, which: int) -> float:
        return 1000.0 * which + self.rates[which] * self.now

    # --- what happens -------------------------------------------------------------------------

    @rule(seconds=st.floats(0.01, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(paused=st.sets(st.integers(0, 2), max_size=2), turns=st.integers(1, 40))
    def some_are_paused_and_the_others_go_on(self, paused: set[int], turns: int) -> None:
        late, self.requests = self.requests, []
        for _ in range(turns):
            for which in set(range(len(self.replicas))) - paused:
                self.a_replica_asks(which)
                self._answer_all()
                self.at_most_one_acts()
            self.now += 0.5
        self.requests = late

    @rule(which=st.integers(0, 2))
    def a_replica_asks(self, which: int) -> None:
        which %= len(self.replicas)
        replica, now = self.replicas[which], self._clock(which)
        if replica.wrote_last:
            self._write(which)
        else:
            self.requests.append(Request(which, replica.identity, now))

    def _write(self, which: int) -> None:
        replica, now = self.replicas[which], self._clock(which)
        if replica.may_write(now):
            spec = replica.spec(NOON)
            self.requests.append(Request(which, replica.identity, now, spec, replica.lease))

    @rule(which=st.integers(0, 100))
    def a_request_is_carried_out(self, which: int) -> None:
        todo = [each for each in self.requests if not each.is_carried_out]
        if todo:
            self._carry_out(todo[which % len(todo)])

    def _carry_out(self, request: Request) -> None:
        request.is_carried_out = True
        if request.spec is None:
            request.answer = self.lease
        elif request.present == self.lease:
            version = int(self.lease.version) + 1 if self.lease else 1
            metadata = {"uid": "u", "resourceVersion": str(version)}
            request.answer = self.lease = read_lease({"metadata": metadata, "spec": request.spec})
        else:
            request.is_refused = True

    @rule(which=st.integers(0, 100))
    def an_answer_comes(self, which: int) -> None:
        done = [each for each in self.requests if each.is_carried_out]
        if done:
            self._answer(done[which % len(done)])

    def _answer(self, request: Request) -> None:
        self.requests.remove(request)
        replica = self.replicas[request.replica]
        if replica.identity != request.identity:
            return  # of a former process
        if request.spec is None:
            replica = replica.seen(request.answer, self._clock(request.replica))
        elif request.is_refused or request.answer is None:
            replica = replica.doubted()
        else:
            replica = replica.wrote(request.answer, request.sent_at)
        self.replicas[request.replica] = replica
        if request.spec is None:
            self._write(request.replica)

    @rule(which=st.integers(0, 100))
    def a_replica_waits_no_longer(self, which: int) -> None:
        """Its request may be carried out all the same; the answer finds nobody."""
        if self.requests:
            request = self.requests[which % len(self.requests)]
            request.identity = ""
            self.replicas[request.replica] = self.replicas[request.replica].doubted()

    @rule(which=st.integers(0, 2))
    def a_process_is_replaced(self, which: int) -> None:
        self.replicas[which % len(self.replicas)] = self._new()

    @rule(which=st.integers(0, 2))
    def a_replica_gives_the_lease_back(self, which: int) -> None:
        which %= len(self.replicas)
        replica = self.replicas[which]
        spec = {**replica.spec(NOON), "holderIdentity": ""}
        if self.lease is not None and self.lease.holder == replica.identity:
            self._carry_out(Request(which, replica.identity, 0.0, spec, self.lease))
        self.replicas[which] = self._new()

    # --- what must be so ----------------------------------------------------------------------

    def leaders(self) -> list[str]:
        """Who may act now."""
        states = enumerate(self.replicas)
        return [each.identity for which, each in states if each.leads(self._clock(which))]

    @invariant()
    def at_most_one_acts(self) -> None:
        assert len(self.leaders()) <= 1

    def teardown(self) -> None:
        """From here on every request is answered at once."""
        self._answer_all()
        self.some_are_paused_and_the_others_go_on(set(), 60)
        assert self.leaders()

    def _answer_all(self) -> None:
        while self.requests:
            if not self.requests[0].is_carried_out:
                self._carry_out(self.requests[0])
            self._answer(self.requests[0])


TestElection = Election.TestCase
TestElection.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
