"""Encodes plans so that what never changes is written only once.

Each step with a plan is a new version of its document. To repeat thousands of moves in each would fill the topic and
the memory of every broker. The moves, the advice and their origin are in the first version that has them; the outcomes
in the version that ends the run. Everybody reads the versions of a document in order, so a reader has already seen what
a later version omits.
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
"""The limit for all outcomes of a plan: they must fit into one record too, or the plan could never end."""

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
"""Fields that are written once, with the value that stands there before."""
_read = msgspec.json.Decoder(Plan).decode
_write = msgspec.json.Encoder().encode


class Shortened:
    """Encodes and decodes the versions of plans; one instance for each reader of the topic."""

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[str, object]] = defaultdict(dict)

    def encode(self, plan: Plan) -> bytes:
        """The plan without the fields that earlier versions have."""
        known = self._known[plan.id]
        short = msgspec.structs.replace(plan, **{name: _ABSENT[name] for name in known})
        if short.outcomes:
            short = msgspec.structs.replace(short, outcomes=_brief(short.outcomes))
        return _write(short)

    def decode(self, data: bytes) -> Plan:
        """The plan with the fields of earlier versions.

        Raises msgspec.MsgspecError if the bytes are no plan, and Invalid if the id of its advice is wrong.
        """
        plan = _read(data)
        if plan.advice is not None:
            check_seal(plan.advice)
            if plan.advice.id != plan.id:
                raise Invalid(f"plan {plan.id!r} carries advice {plan.advice.id}: both must have the same id")
        known = self._known[plan.id]
        for name, absent in _ABSENT.items():
            if name not in known and (value := getattr(plan, name)) != absent:
                known[name] = value
        return msgspec.structs.replace(plan, **known)

    def forget(self, plan_id: str) -> None:
        """The plan was deleted."""
        self._known.pop(plan_id, None)


def _brief(outcomes: Sequence[PieceOutcome]) -> tuple[PieceOutcome, ...]:
    """Outcomes with details cut to fit; thousands of failures usually share one cause."""
    each = min(DETAIL_CHARACTERS, DETAILS_CHARACTERS // len(outcomes))
    return tuple(
        outcome
        if len(outcome.detail) <= each
        else msgspec.structs.replace(outcome, detail=outcome.detail[: each - 1] + "…")
        for outcome in outcomes
    )
