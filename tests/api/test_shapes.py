"""Shapes of answers that are read from the domain's values, field by field."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from pydantic import ValidationError

from loadmanager.channel.bundle_history import Entry, Winner
from loadmanager.strategies.rebalancing.decision import Move, Stage
from loadmanager_api.application import routes_of_all
from loadmanager_api.routes.bundles import HistoryEntry
from loadmanager_api.routes.policies import PolicyMove
from loadmanager_api.shapes import Shape
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Role
from statechannel.law.transitions import State


def shapes(of: type[Shape] = Shape) -> Iterator[type[Shape]]:
    for shape in of.__subclasses__():
        yield shape
        yield from shapes(shape)


def test_no_field_has_a_default_that_would_be_shown_for_one_that_the_value_lacks():
    routes_of_all()
    found = set(shapes())
    assert len(found) > 10
    assert not [
        f"{shape.__name__}.{name}"
        for shape in found
        for name, field in shape.model_fields.items()
        if not field.is_required()
    ]


def test_shapes_have_nouns_as_names():
    names = routes_of_all().openapi()["components"]["schemas"]
    assert len(names) > 100
    assert not [name for name in names if name.endswith(("Shown", "Told", "Wanted", "Wish", "Wished"))]


def test_a_value_without_one_of_the_fields_is_refused():
    class Half(msgspec.Struct):
        bundle: str = "t/n/0x00000000_0x80000000"

    with pytest.raises(ValidationError, match="source"):
        PolicyMove.model_validate(Half())


def test_a_move_names_its_bundle_and_brokers():
    bundle, a, b = Bundle("t/n", 0, 1 << 31), BrokerId("a:1", 7), BrokerId("b:1", 8)
    move = Move(bundle, a, b, load=0.1, gain=0.1, reason="r", stage=Stage.BALANCE)
    shown = {"bundle": str(bundle), "source": "a:1", "destination": "b:1", "stage": "balance", "reason": "r"}
    assert PolicyMove.model_validate(move).model_dump() == shown
    nowhere = msgspec.structs.replace(move, destination=None)
    assert PolicyMove.model_validate(nowhere).destination is None


def test_a_record_is_shown_with_plain_values():
    bundle = Bundle("t/n", 0, 1 << 31)
    entry = Entry(
        offset=5,
        appended_ms=1,
        written_ms=2,
        record_id="r",
        action=Action.SPLIT,
        actor="a:1#1",
        role=Role.ADMIN,
        epoch=3,
        accepted=False,
        before=State.ASSIGNED,
        after=None,
        owner=None,
        target=None,
        to=None,
        reason="",
        cause="",
        bundles=1,
        boundaries=(0x10, 0xFFFFFFFF, *range(2_000)),
        parents=(bundle,),
        winner=Winner(4, Action.SPLIT, "b:1#1"),
    )
    shown = HistoryEntry.model_validate(entry).model_dump(mode="json")
    assert (shown["action"], shown["role"], shown["before"], shown["after"]) == ("split", "admin", "assigned", None)
    assert shown["boundaries"][:2] == ["0x00000010", "0xffffffff"]
    assert len(shown["boundaries"]) == 1_000
    assert (shown["parents"], shown["children"], shown["refused"]) == ([str(bundle)], [], None)
    assert shown["winner"] == {"offset": 4, "action": "split", "actor": "b:1#1"}
    assert shown.keys() == set(HistoryEntry.model_fields)
