"""Decision records as columns, read by the leader's own codec. Models stay in bronze: see `has_model`."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from loadmanager.decisions.record import BEGUN, DecisionRecord, Outcome
from loadmanager.history.decoding.columns import Shape, attributes, decimal, flag, listed, number, small, text, time

_NONE = Outcome("")


class _Move(msgspec.Struct, frozen=True):
    """One row of `move`."""

    ordinal: int
    bundle: str
    source: str
    destination: str | None
    stage: str
    reason: str
    gain: float | None
    outcome: str | None
    detail: str | None


def _moves(record: DecisionRecord) -> list[_Move]:
    """The moves of a round.

    Outcome and detail are null where the round was cut off; a gain of 0 means that the strategy gave none, and is null.
    """
    moves, outcomes = record.decision.moves, record.outcomes
    known = [*outcomes[: len(moves)], *[_NONE] * (len(moves) - len(outcomes))]
    return [
        _Move(
            ordinal=ordinal,
            bundle=str(move.bundle),
            source=move.source.name,
            destination=move.destination.name if move.destination else None,
            stage=str(move.stage),
            reason=move.reason,
            gain=move.gain or None,
            outcome=outcome.outcome or None,
            detail=outcome.detail if outcome.outcome else None,
        )
        for ordinal, (move, outcome) in enumerate(zip(moves, known, strict=True))
    ]


def _begun(record: DecisionRecord) -> int:
    return sum(outcome.outcome == BEGUN for outcome in record.outcomes)


def _settings(record: DecisionRecord) -> str:
    return msgspec.json.encode(record.settings, enc_hook=str).decode()


DECISION = Shape(
    {
        "id": text(attrgetter("id")),
        **attributes(number, "epoch", "round"),
        "at": time(attrgetter("at_ms")),
        "leader": text(attrgetter("leader.name")),
        "strategy": text(attrgetter("strategy")),
        "reason": text(attrgetter("decision.reason")),
        "moves": small(lambda record: len(record.decision.moves)),
        "begun": small(_begun),
        **{name: decimal(attrgetter(f"decision.{name}")) for name in ("spread_before", "spread_after")},
        "settings": text(_settings),
        "digest": text(attrgetter("digest")),
        "has_model": flag(lambda record: record.model is not None),
        "policies_revision": number(attrgetter("policies_revision")),
        "made": listed(
            _moves,
            Shape(
                {
                    "ordinal": small(attrgetter("ordinal")),
                    **attributes(text, "bundle", "source", "destination", "stage", "reason"),
                    "gain": decimal(attrgetter("gain")),
                    **attributes(text, "outcome", "detail"),
                }
            ),
        ),
    }
)
