"""A group by examples: who waits for whom, what is refused, what a new owner finds."""

from __future__ import annotations

import pytest

from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import (
    Mode,
    Partition,
    Record,
    Settings,
    Subscription,
    decoded,
    key_of,
    parsed,
)
from loadmanager.consumers.coordinator.targets import STRATEGIES
from loadmanager.errors import Invalid
from statechannel.law.record import Token

NAME = "persistent://shop/orders/billing"
ORDERS = Subscription(("orders",))
SESSION_MS = 10_000
TOKEN = Token(1, 0, 7)


class Members:
    """Sends the heartbeats of members that do at once what they are told, unless a test says otherwise."""

    def __init__(self, partitions: int = 6, settings: Settings | None = None) -> None:
        self.now_ms = 0
        self.group = Group(NAME, settings)
        self.group.set_topics({"orders": partitions}, 0)
        self.last: dict[str, Answer] = {}
        self.sequence = 0

    def beat(self, name: str, *, acked: int | None = None, subscription: Subscription = ORDERS) -> Answer:
        answer = self.try_beat(name, acked=acked, subscription=subscription)
        assert isinstance(answer, Answer), answer
        return answer

    def try_beat(self, name: str, *, acked: int | None = None, subscription: Subscription = ORDERS) -> Answer | Refusal:
        self.sequence += 1
        last = self.last.get(name)
        epoch, revision, generation = (last.epoch, last.revision, last.generation) if last else (0, 0, 0)
        beat = Beat(subscription, epoch, revision if acked is None else acked, self.sequence, generation)
        answer = self.group.heartbeat(name, beat, self.now_ms)
        if isinstance(answer, Answer):
            self.last[name] = answer
        return answer

    def reads(self, name: str) -> list[int]:
        return list(self.last[name].partitions.get("orders", ()))


def settle(members: Members) -> None:
    """Two members, each of which reads its part."""
    for _ in range(3):
        members.beat("a")
        members.beat("b")


def weighed(group: Group, weights: dict[Partition, float], now_ms: int) -> bool:
    """Whether it was divided again for these weights."""
    generation = group.generation
    group.weigh(weights, now_ms)
    return group.generation > generation


def divide(group: Group) -> None:
    """What the shell does with a large group."""
    while (plan := group.plan()) is not None:
        group.take(plan(), 0)
        while group.place(1, 0):
            group.check_invariants()


def records_of(group: Group) -> dict[str, Record]:
    """All that a new owner finds in the log."""
    again = Group.restored(NAME, {}, 0)
    assert again.members == {}
    written = {key: value for key, value in group.written(TOKEN) if value is not None}
    return {parsed(key)[2]: decoded(key, value) for key, value in written.items()}


def records_of_all(group: Group) -> dict[str, Record]:
    """The same of a group whose records were written before."""
    group._due = dict.fromkeys(group.members)
    return records_of(group)


# --- moving


def test_the_first_member_reads_everything() -> None:
    members = Members()
    assert members.beat("a").partitions == {"orders": (0, 1, 2, 3, 4, 5)}


def test_a_partition_goes_to_the_next_only_when_it_was_given_up() -> None:
    members = Members()
    members.beat("a")
    assert members.beat("b").partitions == {}
    before = members.last["a"].revision
    members.beat("a", acked=before)  # it has been told now, and is still at it
    assert members.reads("a") == [0, 1, 2]
    assert members.beat("b").partitions == {}
    members.beat("a")
    members.beat("b")
    assert members.reads("b") == [3, 4, 5]


def test_who_keeps_everything_waits_for_nobody() -> None:
    """One of three gives nothing up. The partitions of the one that is gone are read at once by who is there."""
    members = Members(9)
    for name in ("a", "b", "c", "a", "b", "c", "a", "b", "c"):
        members.beat(name)
    revisions = {name: answer.revision for name, answer in members.last.items()}
    assert all(len(members.reads(name)) == 3 for name in "abc")
    members.group.leave("c", 0)
    for name in "ab":
        kept = members.reads(name)
        assert set(kept) < set(members.beat(name).partitions["orders"])
        assert members.last[name].revision == revisions[name] + 1


def test_a_heartbeat_without_news_asks_no_strategy_and_writes_nothing() -> None:
    members = Members()
    for name in ("a", "b", "a", "b", "a", "b"):
        members.beat(name)
    members.group.written(TOKEN)
    generation = members.group.generation
    members.beat("a")
    assert members.group.written(TOKEN) == []
    assert members.group.generation == generation


def test_new_partitions_are_read_at_once_and_nothing_else_moves() -> None:
    members = Members(4)
    for name in ("a", "b", "a", "b"):
        members.beat(name)
    before = {name: members.reads(name) for name in "ab"}
    members.group.set_topics({"orders": 6}, 0)
    after = {name: list(members.beat(name).partitions["orders"]) for name in "ab"}
    assert all(set(before[name]) < set(after[name]) for name in "ab")
    assert sorted(after["a"] + after["b"]) == list(range(6))


def test_partitions_of_a_topic_that_is_gone_are_given_up() -> None:
    members = Members(4)
    members.beat("a")
    members.group.set_topics({}, 0)
    assert members.beat("a").partitions == {}
    members.beat("a")
    assert members.group.holders == {}


def test_a_topic_may_come_after_its_readers() -> None:
    members = Members()
    later = Subscription(("later",))
    assert members.beat("a", subscription=later).partitions == {}
    assert members.group.wanted_topics() == {"later"}
    members.group.set_topics({"later": 2}, 0)
    assert members.beat("a", subscription=later).partitions == {"later": (0, 1)}


# --- sessions


def test_a_silent_member_loses_everything_after_its_session_and_not_before() -> None:
    members = Members()
    members.beat("a")
    members.beat("b")
    members.now_ms = SESSION_MS
    assert members.group.expire(SESSION_MS) == []
    members.beat("b")
    deadline_ms = members.group.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > SESSION_MS
    assert members.group.expire(deadline_ms) == ["a"]
    assert members.beat("b").partitions == {"orders": (0, 1, 2, 3, 4, 5)}
    refused = members.try_beat("a")
    assert isinstance(refused, Refusal)
    assert refused.why is Why.UNKNOWN_MEMBER


def test_who_gives_nothing_up_in_time_is_not_prolonged() -> None:
    members = Members()
    slow = Subscription(("orders",), revoke_timeout_ms=15_000)
    members.beat("a", subscription=slow)
    members.beat("b")
    for members.now_ms in range(1_000, 15_000, 1_000):
        assert members.beat("a", acked=0, subscription=slow).lease_ms == SESSION_MS
    members.now_ms = 15_000
    assert members.beat("a", acked=0, subscription=slow).lease_ms == 0
    members.now_ms = 26_000
    assert "a" in members.group.expire(members.now_ms)


def test_a_member_that_gives_up_late_is_prolonged_again() -> None:
    members = Members()
    members.beat("a")
    members.beat("b")
    members.now_ms = 61_000
    assert members.beat("a", acked=0).lease_ms == 0
    assert members.beat("a").lease_ms == SESSION_MS


def test_a_late_heartbeat_brings_no_former_subscription_back() -> None:
    members = Members()
    members.beat("a")
    late = Beat(Subscription(("orders", "old")), members.last["a"].epoch, 1, sequence=0)
    members.group.heartbeat("a", late, 5_000)
    assert members.group.members["a"] == ORDERS
    assert members.group.expire(SESSION_MS + 1_000) == ["a"]


def test_a_joining_heartbeat_that_comes_again_later_is_nobody() -> None:
    members = Members()
    members.beat("a")
    first = members.last["a"]
    members.group.leave("a", 0)
    members.group.heartbeat("a", Beat(ORDERS), 0)  # the network had kept it
    refused = members.try_beat("a")
    assert isinstance(refused, Refusal)
    assert members.group.refusals("a", first.epoch, 9, [("orders", 0)])[("orders", 0)].why is Why.UNKNOWN_MEMBER


# --- commits


def test_commits_count_from_who_holds_the_partition() -> None:
    members = Members(2)
    first = members.beat("a")
    assert members.group.refusals("a", first.epoch, first.revision, [("orders", 0)]) == {}
    assert members.group.refusals("b", 1, 1, [("orders", 0)])[("orders", 0)].why is Why.UNKNOWN_MEMBER
    members.beat("b")
    told = members.beat("a", acked=first.revision)
    assert told.partitions == {"orders": (0,)}
    assert members.group.refusals("a", told.epoch, first.revision, [("orders", 1)]) == {}, "it is still at it"
    members.beat("a")
    refused = members.group.refusals("a", told.epoch, first.revision, [("orders", 0), ("orders", 1)])
    assert {partition: each.why for partition, each in refused.items()} == {("orders", 1): Why.NOT_YOURS}


def test_a_commit_of_an_earlier_time_is_late() -> None:
    members = Members(2)
    first = members.beat("a")
    members.beat("b")
    members.beat("a", acked=first.revision)
    members.beat("a")
    members.group.leave("b", 0)
    again = members.beat("a")
    assert again.partitions == {"orders": (0, 1)}
    assert members.group.refusals("a", first.epoch, first.revision, [("orders", 1)]).keys() == {("orders", 1)}
    assert members.group.refusals("a", again.epoch, again.revision, [("orders", 1)]) == {}


# --- a new owner


def test_a_takeover_moves_nothing() -> None:
    members = Members(7)
    for name in ("a", "b", "c", "a", "b", "c", "a", "b", "c"):
        members.beat(name)
    before = members.last
    members.group = Group.restored(NAME, records_of(members.group), 0)
    for name, answer in before.items():
        after = members.beat(name)
        assert (after.epoch, after.revision, after.partitions) == (answer.epoch, answer.revision, answer.partitions)
    assert members.group.holders == {("orders", each): members.group.target(("orders", each)) for each in range(7)}


def test_a_takeover_in_the_middle_of_a_move_ends_it() -> None:
    members = Members(2)
    members.beat("a")
    members.beat("b")
    members.beat("a", acked=0)
    members.group = Group.restored(NAME, records_of(members.group), 0)
    assert members.beat("b").partitions == {}, "a has not given it up"
    members.beat("a")
    assert members.beat("b").partitions == {"orders": (1,)}


def test_a_new_owner_never_repeats_a_generation() -> None:
    members = Members(2)
    members.beat("a")
    before = members.group.generation
    assert Group.restored(NAME, records_of(members.group), 0).generation > before


def test_a_member_that_left_is_deleted_from_the_log() -> None:
    members = Members(2)
    members.beat("a")
    members.group.written(TOKEN)
    members.group.leave("a", 0)
    assert dict(members.group.written(TOKEN))[key_of(NAME, TOKEN, "a")] is None


# --- who divides


def test_strategy_changes_while_members_read() -> None:
    members = Members(6)
    for name in ("a", "b", "a", "b"):
        members.beat(name)
    members.group.configure(Settings(strategy="AVG_BY_CIRCLE"), 0)
    for name in ("a", "b", "a", "b", "a", "b"):
        members.beat(name)
    assert (members.reads("a"), members.reads("b")) == ([0, 2, 4], [1, 3, 5])


def test_weights_count_for_the_weighted_strategy() -> None:
    members = Members(6, Settings(strategy="WEIGHTED_STICKY"))
    weights: dict[Partition, float] = {("orders", each): 1.0 for each in range(6)} | {("orders", 0): 5.0}
    for name in ("a", "b", "a", "b"):
        members.beat(name)
    members.group.rebalance(weights, 0)
    for name in ("a", "b", "a", "b", "a", "b"):
        members.beat(name)
    assert sorted(len(members.reads(name)) for name in "ab") == [1, 5]


def test_a_group_is_divided_anew_for_its_lag_only_if_that_helps() -> None:
    members = Members(4, Settings(strategy="WEIGHTED_STICKY"))
    settle(members)
    generation = members.group.generation
    heavy = [("orders", number) for number in members.reads("a")]
    assert not weighed(members.group, dict.fromkeys(heavy[:1], 9.0), 1), "one partition is as heavy elsewhere"
    assert not weighed(members.group, {("orders", number): 1.0 for number in range(4)}, 1)
    assert members.group.generation == generation, "nobody is told of what changes nothing"
    assert weighed(members.group, dict.fromkeys(heavy, 9.0), 1)
    assert not weighed(members.group, dict.fromkeys(heavy, 9.0), 1), "it moves already"
    for _ in range(3):
        members.beat("a")
        members.beat("b")
    assert [len({number for _, number in heavy} & set(members.reads(name))) for name in "ab"] == [1, 1]
    assert not weighed(members.group, dict.fromkeys(heavy, 9.0), 1)


def test_a_group_in_which_a_partition_moves_is_not_divided_again_before_it_has_arrived() -> None:
    members = Members(6, Settings(strategy="WEIGHTED_STICKY"))
    settle(members)
    heavy_at = {name: dict.fromkeys([("orders", number) for number in members.reads(name)], 9.0) for name in "ab"}
    assert weighed(members.group, heavy_at["a"], 1)
    generation, holders = members.group.generation, dict(members.group.holders)
    assert not weighed(members.group, heavy_at["b"], 2), "a has not given up what goes to b"
    assert (members.group.generation, members.group.holders) == (generation, holders)
    settle(members)
    assert members.group.holders != holders
    assert weighed(members.group, heavy_at["b"], 3)


def test_a_large_group_is_divided_when_it_is_planned_and_what_changed_meanwhile_counts_next() -> None:
    members = Members(6)
    settle(members)
    group = members.group
    group.large = -1
    group.configure(Settings(strategy="AVG"), 1)
    targets = {each: group.target(each) for each in group.holders}
    plan = group.plan()
    assert plan is not None
    assert group.plan() is None, "one at a time"
    members.beat("c")
    group.leave("b", 2)
    assert {each: group.target(each) for each in targets} == targets, "a plan changes nothing"
    group.take(plan(), 2)
    while group.place(1, 2):
        group.check_invariants()
    assert "b" not in group.holders.values(), "it has left while its part was planned"
    divide(group)
    assert group.measures.rebalances()[0].why == "c joined, and 1 more"
    for name in ("a", "c", "a", "c", "a", "c"):
        members.beat(name)
    group.check_invariants()
    assert (members.reads("a"), members.reads("c")) == ([0, 1, 2], [3, 4, 5])


def test_a_member_that_comes_back_before_its_leave_was_planned_gets_its_part() -> None:
    members = Members(6)
    settle(members)
    members.group.large = -1
    members.group.leave("b", 1)
    assert "b" not in members.group.holders.values()
    del members.last["b"]
    members.beat("b")
    divide(members.group)
    members.group.check_invariants()
    assert len(members.group.holders) == 6


def test_no_member_claims_by_a_division_that_is_being_replaced() -> None:
    """The next one is computed without such a claim: the partition would stay with the wrong member."""
    members = Members(4, Settings(Mode.CLIENT))
    group = members.group
    group.large = -1
    for name in "ab":
        members.beat(name)
    divide(group)
    settle(members)
    assert members.last["b"].view is None, "it knows this generation"
    members.beat("c")
    plan = group.plan()
    assert plan is not None
    members.beat("d")
    group.take(plan(), 0)
    while group.place(1, 0):
        pass
    plan = group.plan()
    assert plan is not None
    members.beat("b")
    of_a = next(each for each in group.holders if group.target(each) == "a")
    last = members.last["b"]
    members.sequence += 1
    claim = Beat(ORDERS, last.epoch, last.revision, members.sequence, last.generation, (of_a,))
    group.heartbeat("b", claim, 0)
    for _ in range(2):  # it gives up what was claimed
        members.beat("a")
    group.take(plan(), 0)
    while group.place(1, 0):
        pass
    for _ in range(3):
        for name in "abcd":
            members.beat(name)
    group.check_invariants()
    assert not group.is_divided
    assert group.target(of_a) == group.holders[of_a]


def test_a_plan_of_former_settings_does_not_count() -> None:
    members = Members(6)
    settle(members)
    members.group.large = -1
    members.group.configure(Settings(strategy="AVG"), 1)
    plan = members.group.plan()
    assert plan is not None
    members.group.configure(Settings(strategy="AVG_BY_CIRCLE"), 1)
    members.group.take(plan(), 1)
    divide(members.group)
    settle(members)
    assert (members.reads("a"), members.reads("b")) == ([0, 2, 4], [1, 3, 5])
    assert [each.why for each in members.group.measures.rebalances()][:1] == ["strategy AVG, and 1 more"]


@pytest.mark.parametrize("settings", [Settings(), Settings(Mode.CLIENT, "WEIGHTED_STICKY")], ids=["STICKY", "client"])
def test_lag_moves_nothing_where_it_does_not_count(settings: Settings) -> None:
    members = Members(4, settings)
    settle(members)
    assert not weighed(members.group, {("orders", number): 9.0 for number in members.reads("a")}, 1)


def test_members_that_divide_themselves_never_share_a_partition() -> None:
    members = Members(3, Settings(Mode.CLIENT))
    for name in ("a", "b"):
        assert members.beat(name).view is not None
    generation = members.group.generation
    every = tuple(("orders", each) for each in range(3))
    for name in ("a", "b", "a", "b", "a", "b"):  # each thinks that it is alone
        members.sequence += 1
        answer = members.last[name]
        beat = Beat(ORDERS, answer.epoch, answer.revision, members.sequence, generation, every)
        found = members.group.heartbeat(name, beat, 0)
        assert isinstance(found, Answer)
        members.last[name] = found
    assert (members.reads("a"), members.reads("b")) == ([0, 1, 2], [])


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != "CONFIG"])
@pytest.mark.parametrize("silent", [0, 1, 3])
def test_members_that_divide_themselves_strand_no_partition(strategy: str, silent: int) -> None:
    """As `set-mode client` while they read: some compute their claims, as the shipped consumer does, others none."""
    group = Group(NAME, Settings(strategy=strategy))
    group.set_topics({"orders": 12}, 0)
    there: list[Membership] = []

    def settle_all(now_ms: int) -> dict[str, int]:
        for _ in range(5):
            for number, each in enumerate(there):
                ask(group, each, now_ms)
                if number < silent:
                    each.claims = None
                read = [partition for its in there for partition in its.reads(now_ms)]
                assert len(set(read)) == len(read), "two readers"
        group.written(TOKEN)
        for each in there:
            ask(group, each, now_ms)
        assert group.written(TOKEN) == [], "claims that are no news are not written"
        read = [partition for each in there for partition in each.reads(now_ms)]
        assert sorted(read) == [("orders", number) for number in range(len(read))]
        return {each.member: len(each.reads(now_ms)) for each in there}

    there += [reader("a"), reader("b")]
    settle_all(0)
    group.set_racks({"orders": dict.fromkeys(range(16), "one")}, 0)
    group.configure(Settings(Mode.CLIENT, strategy), 0)
    assert sum(settle_all(0).values()) == 12
    there.append(reader("c"))
    found = settle_all(0)
    assert sum(found.values()) == 12
    assert found["c"], "it is given its share"
    group.leave("b", 0)
    del there[1]
    assert sum(settle_all(0).values()) == 12
    group.set_topics({"orders": 16}, 0)
    assert sum(settle_all(0).values()) == 16
    group = Group.restored(NAME, records_of_all(group), 0)
    group.set_topics({"orders": 16}, 0)
    assert sum(settle_all(0).values()) == 16


def test_a_member_that_claims_what_the_others_do_not_expect_gets_it() -> None:
    """Members may have a strategy of their own: claims are granted, and what nobody claims has a reader."""
    group = Group(NAME, Settings(Mode.CLIENT))
    group.set_topics({"orders": 4}, 0)
    greedy, modest = reader("a"), reader("b")
    for _ in range(6):
        for each, wanted in ((greedy, (0, 1, 2)), (modest, ())):
            ask(group, each, 0)
            if each.claims is not None:
                each.claims = tuple(("orders", number) for number in wanted)
    assert sorted(number for _, number in greedy.reads(0)) == [0, 1, 2]
    assert sorted(number for _, number in modest.reads(0)) == [3]


def test_switching_who_divides_moves_nothing_by_itself() -> None:
    members = Members(6)
    for name in ("a", "b", "a", "b", "a", "b"):
        members.beat(name)
    before = dict(members.group.holders)
    members.group.configure(Settings(Mode.CLIENT), 0)
    assert members.beat("a").view is not None
    members.group.configure(Settings(Mode.SERVER), 0)
    members.beat("a")
    assert members.group.holders == before
    assert members.reads("a") == [each for (_, each), name in sorted(before.items()) if name == "a"]


# --- bad input


@pytest.mark.parametrize(
    ("subscription", "says"),
    [
        (Subscription(()), "subscribes to 0 topics"),
        (Subscription(("a", "a")), "names a topic twice"),
        (Subscription(("a",), session_timeout_ms=999), "session_timeout_ms must be 1000 to"),
        (Subscription(("a",), revoke_timeout_ms=0), "revoke_timeout_ms must be 1000 to"),
        (Subscription(("a",), capacity=0), "the capacity of a is 0"),
        (Subscription(("a",), capacity=float("nan")), "the capacity of a is nan"),
    ],
)
def test_a_heartbeat_without_sense_changes_nothing(subscription: Subscription, says: str) -> None:
    members = Members()
    members.group.written(TOKEN)
    with pytest.raises(Invalid, match=says):
        members.beat("a", subscription=subscription)
    assert members.group.members == {}
    assert members.group.written(TOKEN) == []


def test_another_version_of_the_protocol_is_refused_with_the_known_ones() -> None:
    refused = Members().try_beat("a", subscription=Subscription(("orders",), version=2))
    assert refused == Refusal(Why.UNSUPPORTED_VERSION, "this coordinator speaks the versions 1 to 1 of the protocol")


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(Invalid, match="no strategy is called 'LUCK'; there are STICKY"):
        Members().group.configure(Settings(strategy="LUCK"), 0)


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 256])
def test_ids_are_printable_and_not_endless(name: str) -> None:
    with pytest.raises(Invalid, match="1 to 255 printable characters"):
        Members().beat(name)


# --- one session, one process


def reader(name: str, session_ms: int = SESSION_MS) -> Membership:
    return Membership(name, Subscription(("orders",), session_ms))


def ask(group: Group, member: Membership, now_ms: int) -> Answer | Refusal:
    """A heartbeat of a member that does at once what it is told."""
    beat = member.beat(now_ms)
    answer = group.heartbeat(member.member, beat, now_ms)
    member.given_up(member.answered(beat.sequence, answer).revoked)
    return answer


def assert_one_reader(group: Group, waits: Membership, silent: Membership, from_ms: int, to_ms: int) -> None:
    """One asks all the time, the other is not heard any more: never do both read."""
    for now_ms in range(from_ms, to_ms, 100):
        ask(group, waits, now_ms)
        group.expire(now_ms)
        both = waits.reads(now_ms) & silent.reads(now_ms)
        assert not both, f"two readers at {now_ms} ms"
    assert waits.reads(to_ms - 100), "it goes on at last"


@pytest.mark.parametrize(("before_ms", "after_ms"), [(1_000, 30_000), (30_000, 1_000)], ids=["longer", "shorter"])
@pytest.mark.parametrize("moves", [False, True], ids=["", "the coordinator moves"])
def test_a_member_that_changes_its_session_is_never_one_of_two_readers(
    before_ms: int, after_ms: int, moves: bool
) -> None:
    group = Group(NAME)
    group.set_topics({"orders": 1}, 0)
    silent, waits = reader("a", before_ms), reader("b")
    ask(group, silent, 0)
    silent.subscription = Subscription(("orders",), after_ms)
    beat = silent.beat(100)
    answer = group.heartbeat("a", beat, 100)
    if after_ms > before_ms:
        silent.answered(beat.sequence, answer)
    if moves:
        group = Group.restored(NAME, records_of(group), 100)
        group.set_topics({"orders": 1}, 100)
    assert_one_reader(group, waits, silent, 200, 40_000)


def test_of_two_processes_with_one_id_the_second_is_refused() -> None:
    group = Group(NAME)
    group.set_topics({"orders": 1}, 0)
    first, second = reader("pod-0"), reader("pod-0")
    for now_ms in range(0, 30_000, 500):
        assert isinstance(ask(group, first, now_ms), Answer)
        refused = ask(group, second, now_ms)
        assert isinstance(refused, Refusal)
        assert refused.why is Why.ID_IN_USE
        assert not group.expire(now_ms)
        assert first.reads(now_ms)
        assert not second.reads(now_ms)


def test_a_process_that_starts_again_waits_for_its_own_session_and_no_longer() -> None:
    group = Group(NAME)
    group.set_topics({"orders": 1}, 0)
    died, again, other = reader("pod-0"), reader("pod-0"), reader("other")
    for now_ms in range(0, 5_000, 100):
        ask(group, died, now_ms)
    records = records_of(group)
    ask(group, other, 5_000)
    read_ms = 0
    for now_ms in range(5_000, 20_000, 100):
        ask(group, again, now_ms)
        ask(group, other, now_ms)
        group.expire(now_ms)
        assert not again.reads(now_ms) & died.reads(now_ms)
        assert not again.reads(now_ms) & other.reads(now_ms)
        read_ms = read_ms or (now_ms if again.epoch else 0)
    assert 14_900 <= read_ms <= 15_400
    group = Group.restored(NAME, records, 5_000)
    refused = ask(group, reader("pod-0"), 5_100)
    assert isinstance(refused, Refusal), "another coordinator knows it as well"


def test_a_refused_process_that_leaves_ends_no_other_ones_session() -> None:
    group = Group(NAME)
    group.set_topics({"orders": 1}, 0)
    first = reader("pod-0")
    ask(group, first, 0)
    group.leave("pod-0", 0, reader("pod-0").process)
    assert group.holders
    group.leave("pod-0", 0, first.process)
    assert not group.holders


def test_weights_outlive_moves_of_the_coordinator() -> None:
    """Also if somebody joins or dies before they are read anew."""
    group = Group(NAME, Settings(strategy="WEIGHTED_STICKY"))
    group.set_topics({"orders": 12}, 0)
    names = {each: reader(each) for each in "abc"}

    def settle_all(now_ms: int = 0) -> dict[str, frozenset[Partition]]:
        for _ in range(6):
            for each in names.values():
                ask(group, each, now_ms)
        return {name: each.reads(now_ms) for name, each in names.items()}

    settle_all()
    weights: dict[Partition, float] = {("orders", each): 100.0 if each < 2 else 5.0 for each in range(12)}
    assert weighed(group, weights, 0)
    before = settle_all()
    for _ in range(2):
        records = records_of(group)
        group = Group.restored(NAME, records, 0)
        group.set_topics({"orders": 12}, 0)
        assert settle_all() == before
    group.leave("c", 0)
    del names["c"]
    alone = settle_all()
    moved = {each for its in before.values() for each in its} - before["a"] - before["b"]
    assert all(before[name] <= alone[name] for name in names), f"only {moved} move"
    assert not weighed(group, weights, 0)
