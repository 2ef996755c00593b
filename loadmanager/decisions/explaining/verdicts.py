"""What a round did with a bundle, and why no more: from its decision if that says it, else computed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.decisions.explaining.answer import Obstacle, percent
from loadmanager.decisions.explaining.judgement import judgement
from loadmanager.decisions.explaining.obstacles import obstacles
from loadmanager.decisions.explaining.situation import Round, Situation
from loadmanager.decisions.explaining.targets import owner_name, targets
from loadmanager.decisions.record import BEGUN
from loadmanager.strategies.rebalancing.decision import Candidate, Decision, Move
from loadmanager.strategies.rebalancing.plan.judging import Judgement
from statechannel.law.bundle import Bundle

NOT_CHOSEN = "not chosen"
NOTHING_DECIDED = "nothing decided"


def move_of(decision: Decision, bundle: Bundle) -> int | None:
    """The index of the bundle's move in the decision, None if it has none."""
    return next((at for at, move in enumerate(decision.moves) if move.bundle == bundle), None)


def moved_text(round_: Round, at: int) -> str:
    """The move with this index, and its outcome, in words."""
    move = round_.decision.moves[at]
    outcome = round_.outcomes[at] if at < len(round_.outcomes) else None
    after = "" if outcome is None or outcome.outcome == BEGUN else f" ({outcome.outcome}: {outcome.detail})"
    return f"moved from {move.source.name} to {whither(move)}{after}: {move.reason}"


def whither(move: Move) -> str:
    """Where a move goes."""
    return move.destination.name if move.destination is not None else "wherever its next lookup puts it"


def why_not(situation: Situation, bundle: Bundle, judged: Judgement | None) -> tuple[Obstacle, ...]:
    """Why the bundle did not move in the round, or would not now: the strongest reason first, each rule once."""
    found: dict[str, Obstacle] = {}
    for obstacle in _reasons(situation, bundle, judged):
        found.setdefault(obstacle.rule, obstacle)
    return tuple(found.values())


def _reasons(situation: Situation, bundle: Bundle, judged: Judgement | None) -> Iterator[Obstacle]:
    row, decision = situation.rows.get(bundle), situation.round and situation.round.decision
    if row is not None and situation.model is not None and judged is not None:
        yield from obstacles(situation.model, situation.settings, row, targets(situation, judged))
    if decision is not None:
        yield from _left_out(situation, decision, bundle, row)
        yield from _candidates(decision, bundle)
    if judged is not None:
        yield from judgement(situation, judged)
    if decision is not None:
        yield _in_general(decision)


def _left_out(situation: Situation, decision: Decision, bundle: Bundle, row: int | None) -> Iterator[Obstacle]:
    subjects = {str(bundle)}
    if row is not None and situation.model is not None:
        owner = owner_name(situation.model, row)
        subjects |= {owner, *(str(each) for each in situation.model.brokers.ids if each.name == owner)}
    for each in decision.refused:
        if each.subject in subjects:
            about = "" if each.subject == str(bundle) else f"{each.subject} was left out: "
            yield Obstacle(each.rule, f"{about}{each.rule}{_behind(each.detail)}")


def _candidates(decision: Decision, bundle: Bundle) -> Iterator[Obstacle]:
    for each in sorted((c for c in decision.candidates if c.bundle == bundle), key=lambda c: -c.gain):
        yield refused_candidate(each)


def refused_candidate(each: Candidate) -> Obstacle:
    """A refused candidate as an obstacle."""
    gain = f", which would have gained {each.gain:.3g}" if each.gain > 0 else ""
    return Obstacle(each.rule, f"not to {each.destination.name}{gain}: {each.rule}{_behind(each.detail)}")


def _in_general(decision: Decision) -> Obstacle:
    if not decision.moves:
        return Obstacle(NOTHING_DECIDED, f"the round moved nothing: {decision.reason}")
    spread = f"{percent(decision.spread_before)} → {percent(decision.spread_after)} spread"
    moves = "another move" if len(decision.moves) == 1 else f"{len(decision.moves)} other moves"
    return Obstacle(NOT_CHOSEN, f"the round made {moves} ({spread}): {decision.reason}")


def _behind(detail: str) -> str:
    return f" ({detail})" if detail else ""
