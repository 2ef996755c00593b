"""How plans are written down: what never changes any more only once. Each step with a plan is a new version of its
document, and repeating thousands of moves in each would fill the topic, and the memory of every broker.

A plan's moves, and what it was made of, stand in its first version; what became of them in the one that ends the run.
Versions of a document are read in order by everybody, so a reader has seen what a later one leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadmanager.leader.rebalancing.plan_model import Figures, Outcome, Plan, PlannedMove
from loadmanager.strategies.rebalancing.decision import Certificate

DETAIL_CHARACTERS = 300
DETAILS_CHARACTERS = 200_000
"""Of all outcomes of a plan: they must fit into one record, too, or it would never end."""


class Made(msgspec.Struct, frozen=True):
    """What of a plan never changes."""

    moves: tuple[PlannedMove, ...]
    before: Figures
    predicted: Figures
    certificate: Certificate | None
    left_out: Mapping[str, str]


_MADE = Made.__struct_fields__
_read = msgspec.json.Decoder(Plan).decode
_write = msgspec.json.Encoder().encode


class Shortened:
    """Writes and reads the versions of plans; one for each reader of the topic."""

    def __init__(self) -> None:
        self._made: dict[str, Made] = {}
        self._outcomes: dict[str, tuple[Outcome, ...]] = {}

    def encode(self, plan: Plan) -> bytes:
        """Without what was read of it already."""
        short = plan
        if plan.id in self._made:
            short = msgspec.structs.replace(
                short, moves=(), before=Figures(), predicted=Figures(), certificate=None, left_out={}
            )
        if plan.id in self._outcomes:
            short = msgspec.structs.replace(short, outcomes=())
        elif plan.outcomes:
            short = msgspec.structs.replace(short, outcomes=_brief(plan.outcomes))
        return _write(short)

    def decode(self, data: bytes) -> Plan:
        """With what an earlier version said. Raises msgspec.MsgspecError if the bytes are no such value."""
        plan = _read(data)
        if plan.moves:
            self._made.setdefault(plan.id, Made(**{name: getattr(plan, name) for name in _MADE}))
        made = self._made.get(plan.id)
        if made is not None:
            plan = msgspec.structs.replace(plan, **{name: getattr(made, name) for name in _MADE})
        if plan.outcomes:
            self._outcomes.setdefault(plan.id, plan.outcomes)
        return msgspec.structs.replace(plan, outcomes=self._outcomes.get(plan.id, ()))


def _brief(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """With details that fit: thousands of failures have one cause."""
    each = min(DETAIL_CHARACTERS, DETAILS_CHARACTERS // len(outcomes))
    return tuple(
        outcome
        if len(outcome.detail) <= each
        else msgspec.structs.replace(outcome, detail=outcome.detail[: each - 1] + "…")
        for outcome in outcomes
    )
