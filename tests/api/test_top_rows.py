"""What `loadmanager top` shows as rows of text."""

from __future__ import annotations

from loadmanager_api.cli.top.rows import Moves, bars, bundles_table


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
