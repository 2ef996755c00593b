"""What `loadmanager top` shows as rows of text."""

from __future__ import annotations

from typing import Any

from loadmanager_api.cli.top.rows import Moves, all_wrong, bars, brokers_table, bundles_table, by_attention, wrong


def test_what_comes_from_outside_is_shown_as_it_is_written() -> None:
    moves, place = Moves(), {"bundle": "t/n/0x00000000_0x80000000", "target": None}
    evil = "a\x1b[2J[red]b\u202e"
    before, after = {**place, "state": "assigned", "owner": "a:1"}, {**place, "state": "unassigned", "owner": None}
    change = {"at_ms": 0, "action": "unload", "reason": evil, "bundles": [{"before": before, "after": after}]}
    moves.tell(change)
    (row,) = moves.table(160).rows.values()
    assert row[-1] == "unload: a\\x1b[2J[red]b\\u202e"
    assert row[2:6] == ("unassigned", "a:1", "-", "0 ms")


def test_bars_are_as_high_as_the_usage() -> None:
    assert bars([0.0, 0.5, 0.99, 1.7, None]) == "▁▅██ "


def test_where_a_bundle_is_going_is_shown_if_there_is_room() -> None:
    """The table of moves tells it on a narrow terminal."""
    going = {
        "bundle": "t/n/0x00000000_0x10000000", "state": "releasing", "owner": "a:7001", "owner_live": True,
        "target": "b:7001", "rate_msg_s": 2.0, "rate_bytes_s": 1e6, "last_action": "release", "last_actor": "ann",
    }  # fmt: skip
    owners = [next(iter(bundles_table([going], columns).rows.values()))[2] for columns in (80, 160)]
    assert owners == ["a:7001", "a:7001 → b:7001"]


def bundle(name: str, **more: Any) -> dict[str, Any]:
    return {"bundle": name, "state": "assigned", "owner": "a:1", "owner_live": True, **more}


def test_bundles_that_no_broker_serves_come_first_then_those_under_way() -> None:
    bundles = [
        bundle("served"),
        bundle("moving", state="transferring"),
        bundle("not asked for", state="unassigned", owner=None, last_action="create-namespace"),
        bundle("free", state="unassigned", owner=None, last_action="release"),
        bundle("orphan", owner_live=False),
        bundle("locked", state="unassigned", owner=None, waits="quarantined: why"),
        bundle("served, too"),
    ]
    order = [each["bundle"] for each in by_attention(bundles)]
    assert order == ["locked", "orphan", "free", "moving", "served", "not asked for", "served, too"]


def broker(name: str, **more: Any) -> dict[str, Any]:
    usual = {"broker": name, "incarnation": 1, "registered": True, "live": True, "suspected": None, "bundles": 0}
    return {**usual, "load": None, "started_ms": 0, "failure_domain": "", **more}


def test_brokers_that_need_attention_come_first_and_a_dead_one_says_since_when() -> None:
    dead = broker("z:1", registered=False, live=False, gone_ms=1)
    rows = brokers_table(
        [broker("a:1"), dead, broker("c:1", unfit="it failed"), broker("b:1", behind=True)], {}, {}, 80
    )
    assert [row[0] for row in rows.rows.values()] == ["b:1", "c:1", "z:1", "a:1"]
    assert rows.rows["z:1#1"][1].startswith("dead for ")


def test_the_head_says_the_worst_of_what_is_wrong_and_how_many_more_there_are() -> None:
    first = {
        "severity": "error", "found": "3 bundles belong to dead brokers", "why": "safe mode", "names": ["a:1"],
        "advice": "loadmanager channel status", "since_ms": 1,
    }  # fmt: skip
    second = {**first, "severity": "warning", "found": "paused\x1b[2J", "since_ms": None}
    assert wrong([first]) == "ERROR: 3 bundles belong to dead brokers (! shows why) → loadmanager channel status"
    assert wrong([first, second]).startswith("ERROR: 3 bundles belong to dead brokers (and 1 more: ! shows all) →")
    assert wrong([]) == "nothing is wrong"
    assert "needs the role" in wrong(None)
    assert all_wrong([first, second]).count("\n→ loadmanager channel status\na:1") == 2
    assert "WARNING: paused\\x1b[2J" in all_wrong([second])
