"""Strategies as a group asks them: racks of partitions and members, and a configuration."""

from __future__ import annotations

import msgspec
import pytest

from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.records import Mode, Partition, Settings, Subscription, by_topic
from loadmanager.consumers.coordinator.targets import (
    CONFIG_BYTES,
    NEARBY,
    STRATEGIES,
    Situation,
    Targets,
    claims_of,
    divided,
    view_of,
)
from loadmanager.errors import Invalid
from tests.loadmanager.consumers.test_group import NAME, Members, records_of_all

RACKS = {("orders", number): "ab"[number // 6] for number in range(12)}
CONFIG = {"left": {"orders": (0, 1, 2)}, "right": {"orders": (4, 5, 9)}, "later": {"orders": (3,)}}


def within(rack: str = "", name: str = "") -> Subscription:
    return Subscription(("orders",), rack=rack, name=name)


def joined(settings: Settings, racks: dict[Partition, str] | None, **members: Subscription) -> Members:
    """A group whose members have all that they get."""
    found = Members(12, settings)
    for name, subscription in members.items():
        found.beat(name, subscription=subscription)
        if racks is not None:
            found.group.set_racks(by_topic(racks), 0)
    settle(found, **members)
    return found


def settle(there: Members, **members: Subscription) -> None:
    for _ in range(4):
        for name, subscription in members.items():
            there.beat(name, subscription=subscription)
    there.group.check_invariants()
    assert all(there.group.target(each) == holder for each, holder in there.group.holders.items())


# --- racks


@pytest.mark.parametrize("strategy", ["STICKY", "WEIGHTED_STICKY", *NEARBY])
@pytest.mark.parametrize("mode", Mode)
def test_members_read_what_is_led_in_their_rack(strategy: str, mode: Mode) -> None:
    there = joined(Settings(mode, strategy), RACKS, x=within("b"))
    settle(there, x=within("b"), y=within("a"))
    assert (there.reads("y"), there.reads("x")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])


def test_who_dies_is_followed_by_who_is_near() -> None:
    there = joined(Settings(), RACKS, **{name: within(name[0]) for name in ("a1", "a2", "b1", "b2")})
    there.group.leave("a2", 0)
    there.group.leave("b1", 0)
    settle(there, a1=within("a"), b2=within("b"))
    assert (there.reads("a1"), there.reads("b2")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])


def test_members_exchange_what_is_nearer_to_the_other_one_once() -> None:
    there = joined(Settings(), None, x=within("b"), y=within("a"))
    there.group.set_racks(by_topic(RACKS), 0)
    assert there.group.measures.rebalances()[0].why == "its partitions are in other racks"
    settle(there, x=within("b"), y=within("a"))
    assert (there.reads("y"), there.reads("x")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])
    before = dict(there.group.holders)
    there.group.rebalance(None, 0)
    there.group.set_racks(by_topic({**RACKS, ("others", 0): "a"}), 0)
    assert {each: there.group.target(each) for each in before} == before


def test_racks_that_nobody_is_in_are_read_by_all_and_members_without_a_rack_read_those() -> None:
    racks = {each: rack for each, rack in RACKS.items() if each[1] not in (10, 11)}
    settings = Settings(strategy="MACHINE_ROOM_NEARBY-AVG")
    there = joined(settings, racks, x=within("a"), y=within("c"), z=within())
    found = {name: there.reads(name) for name in "xyz"}
    assert set(found["x"]) > {0, 1, 2, 3, 4, 5}, "all of its own rack, and its share of what nobody is near to"
    assert sorted(each for its in found.values() for each in its) == list(range(12))
    assert all(found.values())


def test_a_group_in_racks_follows_where_its_partitions_are() -> None:
    there = joined(Settings(strategy="MACHINE_ROOM_NEARBY-AVG"), RACKS, x=within("a"), y=within("b"))
    assert there.reads("y") == [6, 7, 8, 9, 10, 11]
    there.group.set_racks(by_topic({**RACKS, ("orders", 0): "b"}), 0)
    settle(there, x=within("a"), y=within("b"))
    assert there.reads("y") == [0, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_takeover_moves_nothing_before_and_after_racks_are_known(strategy: str) -> None:
    """Six partitions in one rack and two members there; in the other one member: uneven, as it should be."""
    config = {"left": {"orders": tuple(range(12))}} if strategy == "CONFIG" else {}
    members = {"x": within("a", "left"), "y": within("b"), "z": within("a")}
    there = joined(Settings(strategy=strategy, config=config), RACKS, **members)
    before = dict(there.group.holders)
    assert len(before) == 12
    group = Group.restored(NAME, records_of_all(there.group), 0)
    assert group.settings == there.group.settings
    assert {each: group.target(each) for each in before} == before
    group.set_racks(by_topic(RACKS), 0)
    assert {each: group.target(each) for each in before} == before


def test_what_a_dead_member_had_waits_for_the_racks_and_for_nothing_else() -> None:
    there = joined(Settings(strategy="MACHINE_ROOM_NEARBY-AVG"), RACKS, x=within("a"), y=within("b"), z=within("b"))
    group = Group.restored(NAME, records_of_all(there.group), 0)
    group.leave("z", 0)
    assert group.unread() == 3
    group.set_racks(by_topic(RACKS), 0)
    assert (group.unread(), group.target(("orders", 11))) == (0, "y")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_compute_what_the_coordinator_does(strategy: str) -> None:
    config = CONFIG if strategy == "CONFIG" else {}
    members = {"x": within("a", "left"), "y": within("b", "right"), "z": within("b", "right")}
    situation = Situation(members, {"orders": 12}, None, by_topic(RACKS), config)
    targets = Targets(strategy, {})
    targets.renew(situation)
    view = view_of(strategy, situation, {})
    assert divided(view) == targets.all()
    claimed = sorted(each for name in members for each in claims_of(name, view))
    assert claimed == sorted(targets.all())


# --- CONFIG


@pytest.mark.parametrize("mode", Mode)
def test_each_member_reads_what_is_configured_for_its_name(mode: Mode) -> None:
    settings = Settings(mode, "CONFIG", CONFIG)
    there = joined(settings, None, x=within(name="left"), y=within(name="right"), z=within(name="other"))
    assert [there.reads(name) for name in "xyz"] == [[0, 1, 2], [4, 5, 9], []]
    assert there.group.unread() == 6
    there.group.leave("x", 0)
    there.beat("y", subscription=within(name="right"))
    assert (there.reads("y"), there.group.unread()) == ([4, 5, 9], 9)
    again = joined(settings, None, p=within(name="right"), q=within(name="right"))
    assert [again.reads(name) for name in "pq"] == [[4, 9], [5]], "two of one name share"


def test_a_configured_partition_may_come_later_and_topics_are_subscribed_to() -> None:
    config = {"left": {"orders": (20, 1), "carts": (0,)}}
    there = joined(Settings(strategy="CONFIG", config=config), None, x=within(name="left"))
    assert there.reads("x") == [1]
    there.group.set_topics({"orders": 21, "carts": 1}, 0)
    there.beat("x", subscription=within(name="left"))
    assert there.last["x"].partitions == {"orders": (1, 20)}


def test_a_configuration_changes_while_members_read() -> None:
    there = joined(Settings(strategy="CONFIG", config=CONFIG), None, x=within(name="left"), y=within(name="right"))
    there.group.configure(Settings(strategy="CONFIG", config={"right": {"orders": (0, 4)}}), 0)
    settle(there, x=within(name="left"), y=within(name="right"))
    assert (there.reads("x"), there.reads("y")) == ([], [0, 4])
    assert there.group.measures.rebalances()[0].why == "its config changed"
    there.group.configure(Settings(), 0)
    assert there.group.unread() == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(strategy="MACHINE_ROOM"), "no strategy is called 'MACHINE_ROOM'; there are STICKY, .*CONFIG"),
        (Settings(strategy="CONFIG"), "CONFIG needs config"),
        (Settings(config=CONFIG), "config belongs to the strategy CONFIG, and this is STICKY"),
        (Settings(strategy="CONFIG", config={"": {"orders": (0,)}}), "a member without a name"),
        (Settings(strategy="CONFIG", config={"a": {"or/ders": (0,)}}), "'or/ders' is not a topic of Kafka"),
        (Settings(strategy="CONFIG", config={"a": {"orders": (-1,)}}), "gives a partition -1 of orders"),
        (
            Settings(strategy="CONFIG", config={"a": {"orders": (7,)}, "b": {"orders": (7,)}}),
            "partition 7 of orders to a and to b: name one",
        ),
        (Settings(strategy="CONFIG", config={"a": {"orders": (7, 7)}}), "partition 7 of orders to a and to a"),
        (
            Settings(strategy="CONFIG", config={"a": {"orders": tuple(range(CONFIG_BYTES // 4))}}),
            "more than 65536 bytes as JSON",
        ),
    ],
)
def test_settings_without_sense_are_refused_and_change_nothing(settings: Settings, says: str) -> None:
    there = joined(Settings(), None, x=within())
    before = there.group.record()
    with pytest.raises(Invalid, match=says):
        there.group.configure(settings, 0)
    assert there.group.record() == before


@pytest.mark.parametrize("what", ["rack", "name", "client_id", "host"])
@pytest.mark.parametrize("text", ["a\nb", "a" * 256])
def test_what_a_member_says_of_itself_is_printable_and_not_endless(what: str, text: str) -> None:
    with pytest.raises(Invalid, match=f"the {what} of x is .*: give at most 255 printable characters"):
        Members().beat("x", subscription=msgspec.structs.replace(within(), **{what: text}))
