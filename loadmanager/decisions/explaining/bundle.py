"""Answers `explain BUNDLE`: why a bundle is at its place, why it did not move, what would make it move, and where to.

Pure: from a situation and the bundle's records in the channel. Sentences are for people, with the numbers beside them;
the structs are encoded as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from loadmanager.decisions.codec import BadDecision, given_memory
from loadmanager.decisions.explaining.edits import (
    admitted,
    burdened,
    freed,
    landed,
    multiplied,
    rested,
    resumed,
    with_settings,
)
from loadmanager.decisions.explaining.situation import Round, Situation
from loadmanager.decisions.record import BEGUN
from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, UNITS, ClusterModel
from loadmanager.model.load import RESOURCES, weights_of
from loadmanager.model.observation import LOAD_CHANGE
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Decision, Move, percent
from loadmanager.strategies.rebalancing.plan.eligibility import IN_FLIGHT, KEPT, NO_OWNER, PAUSED, RESTING, UNKNOWN
from loadmanager.strategies.rebalancing.plan.refusals import NO_GAIN, NO_ROOM, WITHIN_TOLERANCE, Judgement, judge
from loadmanager.strategies.rebalancing.strategy import Strategy
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.bundle import Bundle


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a bundle does not move: the rule, a sentence with the numbers, and what would remove it."""

    rule: str
    sentence: str
    lifted_by: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True):
    """A possible destination, with its fullest resource before and after as fractions.

    `rule` says why it may not take the bundle, empty if it may. A usage of None: its load is not known.
    """

    broker: str
    usage: float | None
    after: float | None
    rule: str = ""


class Change(msgspec.Struct, frozen=True):
    """A change, and where the strategy would then move the bundle (empty: the bundle would still stay).

    `tried` is False if the strategy was not run, since the model is too large or missing.
    """

    change: str
    goes_to: str = ""
    tried: bool = True


class Event(msgspec.Struct, frozen=True):
    """An event that brought a bundle to its place, from the channel."""

    at_ms: int
    text: str
    cause: str = ""
    """The id of the decision behind it, empty if there is none."""
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """The load of one resource: in natural units, and as the weighted fraction of capacity (None: no capacity)."""

    resource: str
    load: float
    unit: str
    usage: float | None = None
    capacity: float | None = None
    foreign: float | None = None
    """For a broker: the load that no reported bundle explains."""


class RoundSaid(msgspec.Struct, frozen=True):
    """The round that an explanation is about."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    moves: int


class BundleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `explain BUNDLE`; `answer` is the summary in one sentence.

    Unknown fields are empty, and `notes` say why.
    """

    bundle: str
    at_ms: int
    answer: str
    state: str = ""
    owner: str = ""
    because: tuple[Event, ...] = ()
    """The events that brought it to its place, newest first."""
    round: RoundSaid | None = None
    obstacles: tuple[Obstacle, ...] = ()
    """Why it did not move, the decisive reason first. Empty if it did."""
    moved: str = ""
    """What the round did with the bundle, if it moved it."""
    rest_left_s: float = 0.0
    loads: tuple[Load, ...] = ()
    targets: tuple[Target, ...] = ()
    """The possible destinations, the best first."""
    next_best: Target | None = None
    changes: tuple[Change, ...] = ()
    """Changes that would make it move."""
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def span(seconds: float) -> str:
    """A duration such as 12 s, 5 min, 3 h, 2 days."""
    for unit, length in ((" days", 86_400), (" h", 3_600), (" min", 60)):
        if seconds >= 2 * length or (unit == " min" and seconds >= 120):
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f} s"


def listed(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


SOFT = frozenset({"", WITHIN_TOLERANCE, NO_ROOM, NO_GAIN})
"""Results that the plan weighs; all others are hard rules."""


def judgement_of(situation: Situation, row: int) -> Judgement | None:
    """The plan's judgement of a bundle; None without a model."""
    return None if situation.draft is None else judge(situation.draft, row)


def targets(situation: Situation, judged: Judgement) -> tuple[Target, ...]:
    """All other brokers, those that may take it first, with their usage before and after and the rule against it.

    The hard rules are as the plan reads them; they hold for every strategy. The order is the plan's too: by gain, then
    by the broker's usage after the move.
    """
    model, draft = situation.model, situation.draft
    if model is None or draft is None:
        return ()
    found: list[Target] = []
    for each in judged.destinations:
        at = model.brokers.rows[each.destination]
        known = bool(model.brokers.known[at])
        found.append(
            Target(
                each.destination.name,
                float(draft.peak[at]) if known else None,
                each.usage_after if known else None,
                "" if each.rule in SOFT else each.detail or each.rule,
            )
        )
    return tuple(sorted(found, key=lambda target: target.rule != ""))


def rule_text(model: ClusterModel, rule: int) -> str:
    """A rule of the constraints in words."""
    rules = model.constraints.rules
    return rules[rule] if 0 <= rule < len(rules) else f"rule {rule}"


def owner_name(model: ClusterModel, row: int) -> str:
    """The owner's name, empty without one."""
    owner = int(model.bundles.owner[row])
    return "" if owner == NOWHERE else model.brokers.ids[owner].name


NOWHERE_TO_GO = "no broker may take it"
TOO_LARGE = "too large"


def rest_left_s(model: ClusterModel, row: int) -> float:
    """How long a bundle still rests after its last planned move; 0 if it does not rest."""
    bundles = model.bundles
    if bundles.changed[row]:
        return 0.0
    return max(0.0, float(model.constraints.rest_s[row] - bundles.moved_s[row]))


def must_go(model: ClusterModel, row: int) -> bool:
    """Whether its broker drains, or a hard rule forbids its broker: then it moves whatever the gain."""
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE:
        return False
    misplaced = int(model.constraints.forbidden[model.constraints.kind[row], owner]) != ALLOWED
    return misplaced or bool(model.brokers.draining[owner])


def obstacles(model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]) -> Iterator[Obstacle]:
    """Every hard rule that keeps a bundle, whatever the strategy, the strongest first. `targets` are the bundle's.

    What a strategy weighed beyond these (gain, budget, tolerance) is in its decision, or in `judgement`.
    """
    yield from _of_the_bundle(model, settings, row)
    yield from _of_the_owner(model, row)
    yield from _of_the_targets(model, settings, row, targets)


def _of_the_bundle(model: ClusterModel, settings: Settings, row: int) -> Iterator[Obstacle]:
    bundles = model.bundles
    if bundles.in_flight[row]:
        sentence = "it is being moved, split or revoked at this moment"
        yield Obstacle(IN_FLIGHT, sentence, ("that change is over (see `bundles show`), or `cancel` stops it",))
    rule = int(model.constraints.fixed[row])
    if rule != FREE:
        text = rule_text(model, rule)
        yield Obstacle(KEPT, f"a policy keeps it: {text}", (f"the policy is lifted: {text}",))
    left_s = rest_left_s(model, row)
    if left_s > 0 and not must_go(model, row):
        yield _resting(model, settings, row, left_s)


def _resting(model: ClusterModel, settings: Settings, row: int, left_s: float) -> Obstacle:
    moved, rest = span(float(model.bundles.moved_s[row])), span(float(model.constraints.rest_s[row]))
    sentence = f"it rests for another {span(left_s)}: it was moved {moved} ago, and a moved bundle rests {rest}"
    return Obstacle(
        RESTING,
        sentence,
        (
            f"{span(left_s)} pass",
            f"its load changes by {LOAD_CHANGE:.0%} or more",
            "its broker drains, or a policy forbids it where it is",
        ),
    )


def _of_the_owner(model: ClusterModel, row: int) -> Iterator[Obstacle]:
    owner, name = int(model.bundles.owner[row]), owner_name(model, row)
    if owner == NOWHERE:
        yield Obstacle(NO_OWNER, "it has no owner: a lookup assigns it, balancing does not", ())
        return
    brokers = model.brokers
    if brokers.paused[owner]:
        yield Obstacle(PAUSED, f"automatic decisions leave {name} alone: it is paused", (f"{name} is resumed",))
    if not brokers.known[owner] and not brokers.draining[owner]:
        sentence = f"{name} has reported no fresh load: it neither gives nor takes"
        yield Obstacle(UNKNOWN, sentence, (f"{name} reports its load again",))


def _of_the_targets(
    model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]
) -> Iterator[Obstacle]:
    if model.bundles.owner[row] == NOWHERE:
        return
    if not targets:
        yield Obstacle(NOWHERE_TO_GO, "there is no other broker", ("another broker joins",))
    elif all(target.rule for target in targets):
        rules = list(dict.fromkeys(target.rule for target in targets))
        lifted = tuple(f"this no longer holds: {rule}" for rule in rules[:3])
        yield Obstacle(NOWHERE_TO_GO, f"no other broker may take it: {listed(rules)}", lifted)
    elif not must_go(model, row):
        yield from _too_large(model, settings, row, targets)


def _too_large(model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]) -> Iterator[Obstacle]:
    """An obstacle if its broker is too full, but every allowed one would be at least as full with the bundle."""
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE or not model.brokers.known[owner] or not np.any(model.bundles.load[row]):
        return
    here = float(model.brokers.fullness(settings)[owner])
    if here <= model.brokers.mean_usage(settings) * (1 + settings.tolerance):
        return
    open_to = [target for target in targets if not target.rule and target.after is not None]
    best = min((target for target in open_to), key=lambda each: each.after or 0.0, default=None)
    if best is None or best.after is None or best.after < here:
        return
    sentence = (
        f"it is too large: {best.broker}, the emptiest that may take it, would be {percent(best.after)} full with it, "
        f"and {owner_name(model, row)} is {percent(here)} full now"
    )
    yield Obstacle(
        TOO_LARGE,
        sentence,
        ("it is split", f"its broker gets fuller than {percent(best.after)}", "a larger or emptier broker joins"),
    )


PLAN = "plan"
OTHERS_FIRST = "others came first"


def judgement(situation: Situation, judged: Judgement) -> Iterator[Obstacle]:
    """The plan's reason against the bundle's best move; nothing if a rule keeps the bundle anyway.

    Only for the strategy `plan`: other strategies weigh differently, and give their reasons in their decisions.
    """
    if situation.strategy != PLAN or judged.rule:
        return
    if judged.best is not None:
        best = judged.best
        sentence = (
            f"alone it might go to {best.destination.name} ({percent(best.usage_after)} full with it), "
            "but the round had better moves, or no budget left"
        )
        yield Obstacle(OTHERS_FIRST, sentence, ("those moves are made: the next round weighs it again",))
        return
    weighed = next((each for each in judged.destinations if each.rule in SOFT), None)
    if weighed is not None:
        yield Obstacle(weighed.rule, f"{weighed.rule}: {weighed.detail}", judged.changes)


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
        mine = [each for each in decision.candidates if each.bundle == bundle]
        yield from map(refused_candidate, sorted(mine, key=lambda each: -each.gain))
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


TRIED_BUNDLES = 3_000
TRIED_BROKERS = 300
"""Above these sizes the strategy is too slow to run a dozen times for one question."""

_TIMES = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0)
_FULLER = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)


class OutOfPatience(Exception):
    """The time to run the strategy once more is used up."""


class Trial:
    """Asks the strategy where it would move one bundle, while `may_try` says so."""

    def __init__(self, strategy: Strategy, memory: object, row: int, may_try: Callable[[], bool]) -> None:
        self._may_try = may_try
        self._strategy = strategy
        self._memory = memory
        self._row = row

    def goes_to(self, model: ClusterModel, settings: Settings) -> str:
        """Where the bundle would go, empty if it would stay. Raises OutOfPatience."""
        if not self._may_try():
            raise OutOfPatience
        bundle = model.bundles.ids[self._row]
        moves = self._strategy.decide(model, settings, self._memory).moves
        return next((whither(move) for move in moves if move.bundle == bundle), "")


def changes(
    model: ClusterModel, settings: Settings, row: int, obstacles: Sequence[Obstacle], trial: Trial
) -> tuple[Change, ...]:
    """The changes that would move it, the smallest first, found by running the strategy on them.

    First every hard rule that keeps the bundle is lifted. If it still stays, a few changes are tried in addition: a
    heavier bundle, a fuller broker, a tighter tolerance, a larger budget.
    """
    if len(model.bundles) > TRIED_BUNDLES or len(model.brokers) > TRIED_BROKERS:
        return tuple(Change(text, tried=False) for obstacle in obstacles for text in obstacle.lifted_by)
    found: list[Change] = []
    try:
        found.extend(_tried(model, settings, row, [obstacle.rule for obstacle in obstacles], trial))
    except OutOfPatience:
        found.append(Change("something else changed", tried=False))
    return tuple(found)


def _tried(model: ClusterModel, settings: Settings, row: int, rules: Sequence[str], trial: Trial) -> Iterator[Change]:
    free, lifted = _lifted(model, row, rules)
    if lifted:
        goes_to = trial.goes_to(free, settings)
        yield Change(" and ".join(lifted), goes_to)
        if goes_to:
            return
    also = "in addition " if lifted else ""
    for text, goes_to in _pushed(free, settings, row, trial):
        yield Change(f"{also}{text}", goes_to)


def _lifted(model: ClusterModel, row: int, rules: Sequence[str]) -> tuple[ClusterModel, list[str]]:
    """The model without these hard rules for the bundle, and the change in words."""
    owner, said = int(model.bundles.owner[row]), list[str]()
    if IN_FLIGHT in rules:
        model = landed(model, row)
        said.append("it had arrived")
    if KEPT in rules:
        model = freed(model, row)
        said.append("no policy kept it there")
    if RESTING in rules:
        model = rested(model, row)
        said.append("its rest were over")
    if (PAUSED in rules or UNKNOWN in rules) and owner != NOWHERE:
        model = resumed(model, owner)
        said.append(f"{owner_name(model, row)} took part again")
    if NOWHERE_TO_GO in rules:
        model = admitted(model, row)
        said.append("every broker might take it")
    return model, said


def _pushed(model: ClusterModel, settings: Settings, row: int, trial: Trial) -> Iterator[tuple[str, str]]:
    if np.any(model.bundles.load[row]):
        heavier = ((f"it had {by:g} times its load", multiplied(model, [row], by), settings) for by in _TIMES)
        yield from _first(heavier, trial)
    yield from _first(_fuller(model, settings, row), trial)
    if settings.tolerance > 0.05:
        tight = with_settings(settings, {"balancing_tolerance": "tight"})
        yield from _first([("balancing_tolerance were tight", model, tight)], trial)
    if settings.balancing_budget < 1:
        unlimited = with_settings(settings, {"balancing_budget": 1.0, "balancing_moves_per_round": 10_000})
        yield from _first([("a round had no budget", model, unlimited)], trial)


Question = tuple[str, ClusterModel, Settings]


def _first(questions: Sequence[Question] | Iterator[Question], trial: Trial) -> Iterator[tuple[str, str]]:
    """The first of a series of growing changes that moves the bundle."""
    for text, model, settings in questions:
        goes_to = trial.goes_to(model, settings)
        if goes_to:
            yield text, goes_to
            return


def _fuller(model: ClusterModel, settings: Settings, row: int) -> Iterator[Question]:
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE or not model.brokers.known[owner]:
        return
    now = float(model.brokers.fullness(settings)[owner])
    by_resource = model.brokers.usages(settings)[owner]
    resource = int(by_resource.argmax())
    capacity = float(model.brokers.capacity[owner, resource])
    weight = (
        0.0 if not by_resource[resource] else float(by_resource[resource]) / float(model.brokers.used[owner, resource])
    )
    if weight <= 0 or not np.isfinite(capacity):
        return
    for more in _FULLER:
        text = f"{owner_name(model, row)} were {percent(now + more)} full instead of {percent(now)}"
        yield text, burdened(model, owner, resource, (now + more) / weight), settings


NO_ROUND = "no round is recorded for this moment: this is what a round would see"


class Whereabouts(msgspec.Struct, frozen=True):
    """A bundle at one moment, by the channel. `exists` is False if there is no such bundle (any more)."""

    exists: bool
    state: str = ""
    owner: str = ""
    target: str = ""
    events: tuple[Event, ...] = ()


def explain_bundle(
    situation: Situation, bundle: Bundle, whereabouts: Whereabouts, may_try: Callable[[], bool] | None
) -> BundleAnswer:
    """The answer. The strategy also runs on changes, for the time of up to a dozen rounds, while `may_try` says so.

    None: do not run it.
    """
    row, notes = situation.rows.get(bundle), list(_notes(situation, bundle, whereabouts))
    model = situation.model
    judged = judgement_of(situation, row) if row is not None else None
    towards = targets(situation, judged) if judged is not None else ()
    moved = _moved(situation, bundle)
    why = () if moved or not whereabouts.exists else why_not(situation, bundle, judged)
    found: tuple[Change, ...] = ()
    if why and may_try is not None and model is not None and row is not None:
        strategy, memory = _strategy(situation, notes)
        if strategy is not None:
            found = changes(model, situation.settings, row, why, Trial(strategy, memory, row, may_try))
    return BundleAnswer(
        bundle=str(bundle),
        at_ms=situation.at_ms,
        answer=_answer(whereabouts, moved, why),
        state=whereabouts.state,
        owner=whereabouts.owner,
        because=whereabouts.events,
        round=round_said(situation),
        obstacles=why,
        moved=moved,
        rest_left_s=rest_left_s(model, row) if model is not None and row is not None else 0.0,
        loads=_loads(model, situation, row) if model is not None and row is not None else (),
        targets=towards,
        next_best=next((target for target in towards if not target.rule), None),
        changes=found,
        policies=_policies(model, situation, row) if model is not None and row is not None else (),
        notes=tuple(notes),
    )


def round_said(situation: Situation) -> RoundSaid | None:
    """The round of a situation."""
    taken = situation.round
    if taken is None:
        return None
    decision = taken.decision
    return RoundSaid(taken.id, taken.at_ms, taken.leader, situation.strategy, decision.reason, len(decision.moves))


def _moved(situation: Situation, bundle: Bundle) -> str:
    if situation.round is None:
        return ""
    at = move_of(situation.round.decision, bundle)
    return "" if at is None else moved_text(situation.round, at)


def _answer(whereabouts: Whereabouts, moved: str, why: Sequence[Obstacle]) -> str:
    if not whereabouts.exists:
        return "there is no such bundle"
    going = f", on its way to {whereabouts.target}" if whereabouts.target else ""
    where = (
        f"it is at {whereabouts.owner}{going}" if whereabouts.owner else f"it is {whereabouts.state} and has no owner"
    )
    if moved:
        return f"{where}; the round {moved}"
    return f"{where}, and stays: {why[0].sentence}" if why else where


def stand_in(situation: Situation) -> list[str]:
    """A note if the numbers are not those of the round."""
    if not situation.model_of:
        return []
    return [
        f"round {situation.round.id if situation.round else ''} kept no model ({situation.without_model}): "
        f"the numbers are those of round {situation.model_of}"
    ]


def _notes(situation: Situation, bundle: Bundle, whereabouts: Whereabouts) -> list[str]:
    notes: list[str] = []
    if situation.round is None:
        notes.append(NO_ROUND)
    notes += stand_in(situation)
    if situation.model is None:
        reason = situation.without_model or "the round recorded none"
        notes.append(f"the model of that round is not available ({reason}): there are no numbers and no changes")
    elif bundle not in situation.rows and whereabouts.exists:
        notes.append(
            "its owner did not report it among its 25 hottest bundles, so no round weighed it: "
            "its load counts as foreign there"
        )
    return notes


def _strategy(situation: Situation, notes: list[str]) -> tuple[Strategy | None, object]:
    """The strategy and its memory; notes what is missing."""
    try:
        strategy = STRATEGIES.make(situation.strategy)
    except ValueError as error:
        notes.append(f"no change was tried: {error}")
        return None, None
    try:
        return strategy, given_memory(situation.memory, strategy)
    except BadDecision as error:
        notes.append(f"changes were tried without the strategy's memory: {error}")
        return strategy, None


def _loads(model: ClusterModel, situation: Situation, row: int) -> tuple[Load, ...]:
    """Its load, by resource that it uses."""
    owner, weights = int(model.bundles.owner[row]), weights_of(situation.settings).row
    found: list[Load] = []
    for resource, (name, unit) in enumerate(zip(RESOURCES, UNITS, strict=True)):
        load = float(model.bundles.load[row, resource])
        if load <= 0:
            continue
        capacity = float(model.brokers.capacity[owner, resource]) if owner != NOWHERE else np.inf
        counts = np.isfinite(capacity) and weights[resource] > 0
        found.append(Load(name, load, unit, load / capacity * weights[resource] if counts else None))
    return tuple(found)


def _policies(model: ClusterModel, situation: Situation, row: int) -> tuple[str, ...]:
    """The rules that apply to it, each with the brokers that it excludes."""
    constraints = model.constraints
    found: dict[str, list[str]] = {}
    if constraints.fixed[row] != FREE:
        found[rule_text(model, int(constraints.fixed[row]))] = []
    for at, rule in enumerate(constraints.forbidden[constraints.kind[row]].tolist()):
        if rule != ALLOWED:
            found.setdefault(rule_text(model, rule), []).append(model.brokers.ids[at].name)
    said = [f"{rule}: bars {listed(names)}" if names else rule for rule, names in found.items()]
    if constraints.rest_s[row] != situation.settings.bundle_rest_s:
        said.append(f"rests {span(float(constraints.rest_s[row]))} after a move, by a policy")
    if constraints.weight[row] != 1.0:
        said.append(f"a move of it counts {constraints.weight[row]:g} times")
    if constraints.group[row] != FREE:
        said.append(f"its namespace is in the anti-affinity group {constraints.groups[constraints.group[row]]!r}")
    return tuple(said)
