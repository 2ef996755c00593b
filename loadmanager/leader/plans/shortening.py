"""How plans are written down: what never changes any more only once. Each step with a plan is a new version of its
document, and repeating thousands of moves in each would fill the topic, and the memory of every broker.

A plan's moves, its advice, and what it was made of, stand in the first version that has them; what became of them in
the one that ends the run. Versions of a document are read in order by everybody, so a reader has seen what a later one
leaves out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from loadmanager.errors import Invalid
from loadmanager.leader.plans.advice import check_seal
from loadmanager.leader.plans.model import Figures, PieceOutcome, Plan

DETAIL_CHARACTERS = 300
DETAILS_CHARACTERS = 200_000
"""Of all outcomes of a plan: they must fit into one record, too, or it would never end."""

_ABSENT: dict[str, object] = {
    "moves": (),
    "before": Figures(),
    "predicted": Figures(),
    "certificate": None,
    "left_out": {},
    "advice": None,
    "held": (),
    "ruler": None,
    "baseline": None,
    "effect": None,
    "outcomes": (),
}
"""What of a plan is written once, and what stands there before."""
_read = msgspec.json.Decoder(Plan).decode
_write = msgspec.json.Encoder().encode


class Shortened:
    """Writes and reads the versions of plans; one for each reader of the topic."""

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[str, object]] = defaultdict(dict)

    def encode(self, plan: Plan) -> bytes:
        """Without what was read of it already."""
        known = self._known[plan.id]
        short = msgspec.structs.replace(plan, **{name: _ABSENT[name] for name in known})
        if short.outcomes:
            short = msgspec.structs.replace(short, outcomes=_brief(short.outcomes))
        return _write(short)

    def decode(self, data: bytes) -> Plan:
        """With what an earlier version said. Raises msgspec.MsgspecError if the bytes are no such value, and Invalid if
        its advice is not what its id says."""
        plan = _read(data)
        if plan.advice is not None:
            check_seal(plan.advice)
            if plan.advice.id != plan.id:
                raise Invalid(f"plan {plan.id!r} carries advice {plan.advice.id}, and is called otherwise")
        known = self._known[plan.id]
        for name, absent in _ABSENT.items():
            if name not in known and (value := getattr(plan, name)) != absent:
                known[name] = value
        return msgspec.structs.replace(plan, **known)

    def forget(self, plan_id: str) -> None:
        """It is deleted."""
        self._known.pop(plan_id, None)


def _brief(outcomes: Sequence[PieceOutcome]) -> tuple[PieceOutcome, ...]:
    """With details that fit: thousands of failures have one cause."""
    each = min(DETAIL_CHARACTERS, DETAILS_CHARACTERS // len(outcomes))
    return tuple(
        outcome
        if len(outcome.detail) <= each
        else msgspec.structs.replace(outcome, detail=outcome.detail[: each - 1] + "…")
        for outcome in outcomes
    )
