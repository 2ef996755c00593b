"""Every sentence of a decision held against the model: an own account of the moves, with the limits of the scale.

A sentence of a form that is not known here counts as false.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel, Floats
from loadmanager.model.load import RESOURCES
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Decision, Move, Stage
from loadmanager.strategies.rebalancing.plan.draft import PATIENCE, Draft
from loadmanager.strategies.rebalancing.plan.planner import NEARLY_IDLE

SLACK = 1e-9
_P = r"(\d+(?:\.\d+)?) %"
_B = r"(b\d+):6650"
_USES = rf"{_B} uses {_P}, its limit is {_P}"


def false_sentences(model: ClusterModel, settings: Settings, decision: Decision) -> list[str]:
    """The sentences of the decision that do not hold, each with what was wrong; empty if all are true."""
    account = _Account(model, settings)
    found = [f"{move.reason!r}: {wrong}" for move in decision.moves for wrong in account.make(move, decision)]
    found += [f"{decision.reason!r}: {wrong}" for wrong in account.state(decision)]
    for each in decision.candidates:
        found += [
            f"{each.rule}, {each.detail!r} of {each.bundle}: {wrong}" for wrong in account.candidate(each, decision)
        ]
    found += [f"counts {dict(decision.counts)}: {wrong}" for wrong in account.counts(decision)]
    if decision.certificate is not None and not decision.certificate.text.count("whole plan"):
        found += [f"{decision.certificate.text!r}: {wrong}" for wrong in account.certificate(decision)]
    return found


class _Account:
    """The model with the moves so far."""

    def __init__(self, model: ClusterModel, settings: Settings) -> None:
        self.model, self.settings, draft = model, settings, Draft(model, settings)
        self.scale, self.size, self.eligible = draft.scale, draft.size, draft.eligibility
        self.rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
        self.owner, self.used = model.bundles.owner.copy(), draft.scale.usage.copy()
        self.held = model.brokers.bundles.copy()
        self.leaving = self.eligible.misplaced | self.eligible.drained

    @property
    def peak(self) -> Floats:
        return self.used.max(axis=0, initial=0.0)

    def _parts(self, row: int) -> Floats:
        return self.model.bundles.load[row, list(self.scale.resources)][:, None] * self.scale.per_load

    def _with(self, row: int, broker: int) -> float:
        return float((self.used + self._parts(row))[:, broker].max(initial=0.0))

    def _broker(self, name: str) -> int:
        return next(row for row, each in enumerate(self.model.brokers.ids) if each.name == f"{name}:6650")

    def make(self, move: Move, decision: Decision) -> Iterator[str]:
        row, source = self.rows[move.bundle], self.model.brokers.rows[move.source]
        assert move.destination is not None
        to = self.model.brokers.rows[move.destination]
        before = self.peak
        self.used[:, source] = np.maximum(0.0, self.used[:, source] - self._parts(row)[:, source])
        self.used[:, to] += self._parts(row)[:, to]
        self.held[source] -= 1
        self.held[to] += 1
        self.owner[row] = to
        said = re.fullmatch(rf"(.+): {_B} {_P} → {_P}, {_B} {_P} → {_P}", move.reason)
        if said is None:
            yield "an unknown form"
            return
        why, name, b0, b1, other, d0, d1 = said.groups()
        if (self._broker(name), self._broker(other)) != (source, to):
            yield "other brokers"
        for text, value in ((b0, before[source]), (b1, self.peak[source]), (d0, before[to]), (d1, self.peak[to])):
            yield from _differs(text, value)
        yield from self._why(why, move, row, source, to, before, decision)

    def _why(
        self, why: str, move: Move, row: int, source: int, to: int, before: Floats, decision: Decision
    ) -> Iterator[str]:
        rules, limit = self.model.constraints, self.scale.limit
        name = self.model.brokers.ids[source].name
        if why == f"{name} is draining":
            yield from _unless(bool(self.model.brokers.draining[source]))
        elif why.endswith(f" forbids {name}"):
            at = int(rules.forbidden[rules.kind[row], source])
            yield from _unless(at != ALLOWED and why == f"{rules.rules[at]} forbids {name}")
        elif why == "its group is spread better there":
            yield from _unless(rules.group[row] != FREE and move.stage is Stage.POLICY)
        elif said := re.fullmatch(rf"{_B} is overloaded, above {_P}", why):
            yield from _unless(before[source] > self.scale.overloaded and self._broker(said[1]) == source)
            yield from _differs(said[2], self.scale.overloaded)
        elif said := re.fullmatch(rf"{_B} is above its limit of {_P} \(target {_P}\)", why):
            yield from _unless(before[source] > limit[source] and self._broker(said[1]) == source)
            yield from _differs(said[2], limit[source])
            yield from _differs(said[3], self.scale.target[source])
        elif said := re.fullmatch(rf"{_B} idles below {_P}", why):
            yield from _unless(before[to] < self.scale.idle[to] and self._broker(said[1]) == to)
            yield from _differs(said[2], self.scale.idle[to])
        elif said := re.fullmatch(r"makes room for the other moves of group (\d+)", why):
            yield from _unless(
                int(said[1]) == move.group > 0 and sum(m.group == move.group for m in decision.moves) > 1
            )
        elif said := re.fullmatch(rf"{_B} would end above its limit of {_P} \(target {_P}\)", why):
            yield from _unless(
                self._without(move, source, decision) > limit[source] and self._broker(said[1]) == source
            )
            yield from _differs(said[2], limit[source])
            yield from _differs(said[3], self.scale.target[source])
        elif why == "belongs to a more even plan":
            yield from _unless(move.group == 0 and self._without(move, source, decision) <= limit[source])
        else:
            yield f"an unknown form: {why!r}"

    def _without(self, move: Move, broker: int, decision: Decision) -> float:
        """What a broker would use after all moves but this one."""
        used = self.scale.usage.copy()
        for each in decision.moves:
            assert each.destination is not None
            row, to = self.rows[each.bundle], self.model.brokers.rows[each.destination]
            if each is not move:
                used[:, self.model.brokers.rows[each.source]] -= self._parts(row)[
                    :, self.model.brokers.rows[each.source]
                ]
                used[:, to] += self._parts(row)[:, to]
        return float(used[:, broker].max())

    def state(self, decision: Decision) -> Iterator[str]:
        head, _, state = decision.reason.partition(": " if not decision.moves else "; ")
        sizes = sum(float(self.size[self.rows[move.bundle]]) for move in decision.moves)
        if decision.moves:
            said = re.fullmatch(rf"(\d+) moves? \(([a-z, ]+)\) of together {_P} of a mean broker", head)
            yield from _unless(said is not None and int(said[1]) == len(decision.moves))
            if said is not None:
                yield from _unless(set(said[2].split(", ")) == {str(move.stage) for move in decision.moves})
                yield from _differs(said[3], sizes)
        else:
            yield from _unless(head == "no moves")
        state, _, refusal = state.partition("; ")
        if refusal:
            yield from _unless(refusal == decision.candidates[0].detail)
        hot = np.flatnonzero(self.peak - self.scale.limit > SLACK)
        part = self.scale.takes_part
        if state == "no broker takes part: all are draining, paused or without fresh load data":
            yield from _unless(not part.any())
        elif said := re.fullmatch(rf"every broker is within tolerance, the fullest, {_USES}", state):
            yield from _unless(not hot.size)
            yield from self._fullest(said.groups(), np.flatnonzero(part))
        elif said := re.fullmatch(rf"all brokers are nearly idle, the fullest, {_USES}", state):
            yield from _unless(bool((self.peak[part] < NEARLY_IDLE).all()))
            yield from self._fullest(said.groups(), np.flatnonzero(part))
        elif said := re.fullmatch(rf"(1 broker is|\d+ brokers are) out of tolerance, the fullest, {_USES}(.*)", state):
            yield from _unless(said[1] == ("1 broker is" if hot.size == 1 else f"{hot.size} brokers are"))
            yield from self._fullest(said.groups()[1:4], hot)
            yield from self._stuck(self._broker(said[2]), said[5])
        else:
            yield f"an unknown form: {state!r}"

    def _fullest(self, said: tuple[str, ...], among: np.ndarray) -> Iterator[str]:
        at = self._broker(said[0])
        yield from _unless(at in among and self.peak[at] >= self.peak[among].max() - SLACK)
        yield from _differs(said[1], self.peak[at])
        yield from _differs(said[2], self.scale.limit[at])

    def _stuck(self, broker: int, told: str) -> Iterator[str]:
        at = int(self.used[:, broker].argmax())
        mine = np.flatnonzero((self.owner == broker) & self.eligible.settled)
        parts = np.array([self._parts(row)[at, broker] for row in mine.tolist()])
        rest = max(0.0, float(self.used[at, broker] - parts.sum()))
        said = re.fullmatch(rf", of which {_P} are one bundle and {_P} nothing that can be moved", told)
        if (said is not None) != (float(parts.max(initial=0.0)) + rest > self.scale.limit[broker] + SLACK) or (
            said is None and told
        ):
            yield f"{told!r}, and the largest bundle is {parts.max(initial=0.0)}, what can't be moved {rest}"
        elif said is not None:
            yield from _differs(said[1], float(parts.max(initial=0.0)))
            yield from _differs(said[2], rest)

    def candidate(self, each: Candidate, decision: Decision) -> Iterator[str]:
        row, at = self.rows[each.bundle], self.model.brokers.rows[each.destination]
        source = self.model.brokers.rows[each.source]
        yield from _unless(self.owner[row] == source == self.model.bundles.owner[row])
        brokers, rules, bundles = self.model.brokers, self.model.constraints, self.model.bundles
        detail, name, here = each.detail, each.destination.name, each.source.name
        moved_s, rest_s = float(bundles.moved_s[row]), float(rules.rest_s[row])
        forms: dict[str, Callable[[], bool]] = {
            "it is being moved, split or revoked": lambda: bool(bundles.in_flight[row]),
            f"{here} is paused": lambda: bool(brokers.paused[source]),
            f"{here} has not reported its load": lambda: not brokers.known[source],
            f"{name} is paused": lambda: bool(brokers.paused[at]),
            f"{name} is draining": lambda: bool(brokers.draining[at]),
            f"{name} has not reported its load": lambda: not brokers.known[at],
            f"a planned move took it from {name} within its rest time": lambda: at in bundles.left.get(row, ()),
            f"{name} holds {self.held[at]} bundles of {brokers.max_bundles[at]}": lambda: bool(
                self.held[at] >= brokers.max_bundles[at]
            ),
            f"moved {moved_s:.0f} s ago, rests for another {rest_s - moved_s:.0f} s of {rest_s:.0f} s": lambda: (
                moved_s < rest_s and not bundles.changed[row]
            ),
            f"{self.settings.balancing_moves_per_round} moves are made in a round": lambda: (
                len(decision.moves) >= self.settings.balancing_moves_per_round
            ),
            f"{self.settings.balancing_budget:.0%} of the cluster's load move in a round": lambda: bool(decision.moves),
            "other moves serve better": lambda: bool(decision.moves),
        }
        if detail in forms:
            yield from _unless(forms[detail]())
        elif detail in rules.rules:
            yield from _unless(rules.rules[int(rules.fixed[row])] == detail)
        elif detail.endswith(f" forbids {name}"):
            rule = int(rules.forbidden[rules.kind[row], at])
            yield from _unless(rule != ALLOWED and detail == f"{rules.rules[rule]} forbids {name}")
        elif said := re.fullmatch(_USES, detail):
            yield from _unless(self._broker(said[1]) == source and not self.leaving[row])
            yield from _unless(self.peak[source] <= self.scale.limit[source] + SLACK)
            yield from _differs(said[2], self.peak[source])
            yield from _differs(said[3], self.scale.limit[source])
        elif said := re.fullmatch(rf"{_B} would use {_P}, its limit is {_P}", detail):
            after = self._with(row, at)
            yield from _unless(self._broker(said[1]) == at and after > self.scale.limit[at])
            yield from _differs(said[2], after)
            yield from _differs(said[3], self.scale.limit[at])
        elif said := re.fullmatch(rf"moving {_P} of a broker costs [\d.]+, more than it helps", detail):
            yield from _unless(each.gain <= SLACK and not self.leaving[row])
            yield from _differs(said[1], self.size[row])
        elif said := re.fullmatch(rf"moving {_P} of a broker relieves {_P}, and others of {_B} rest", detail):
            yield from _unless(self._broker(said[3]) == source)
            yield from _differs(said[1], self.size[row])
            limit = self.scale.limit
            left = float(np.max(self.used[:, source] - self._parts(row)[:, source], initial=0.0))
            fall = max(0.0, self.peak[source] - limit[source]) - max(0.0, left - limit[source])
            fall += max(0.0, self.peak[at] - limit[at]) - max(0.0, self._with(row, at) - limit[at])
            yield from _differs(said[2], max(0.0, fall))
            mine = (bundles.owner == source) & self.eligible.settled
            yield from _unless(self.size[row] > PATIENCE * fall and not self.eligible.rested[mine].all())
        elif not re.fullmatch(rf"more namespaces of group '.+' are at {name}: \d+ on it, \d+ in its domain", detail):
            yield f"an unknown form: {detail!r}"

    def counts(self, decision: Decision) -> Iterator[str]:
        """What is counted as within tolerance is at most what may stay at brokers that are."""
        stays = (self.owner == self.model.bundles.owner) & (self.owner >= 0) & ~self.leaving
        within = stays & (self.peak - self.scale.limit <= SLACK)[self.owner]
        if decision.counts.get("owner within tolerance", 0) > int(within.sum()):
            yield f"only {int(within.sum())} are within tolerance"

    def certificate(self, decision: Decision) -> Iterator[str]:
        """The parts of a whole plan's certificate that are no claim about other plans."""
        found = decision.certificate
        assert found is not None
        text, peak, part = found.text, self.peak, self.scale.takes_part
        above = part & (peak - self.scale.ceiling > SLACK)
        excess = float((peak - self.scale.ceiling)[above].sum())
        at = self.scale.resources.index(RESOURCES.index(found.resource))
        load = self.model.bundles.load[:, self.scale.resources[at]] * self.scale.unit[at]
        moved = sum(float(load[self.rows[move.bundle]]) for move in decision.moves)
        idle = int((part & (self.scale.idle - peak > SLACK)).sum())
        for pattern, value in (
            (rf"this plan moves {_P}", moved),
            (rf"at least {_P} of a mean broker's {found.resource} must move", found.bound),
        ):
            if said := re.search(pattern, text):
                yield from _differs(said[1], value)
        if said := re.search(r"\((\d+) brokers? stays? idle\)", text):
            yield from _unless(int(said[1]) == idle)
        else:
            yield from _unless(idle == 0)
        for pattern in (
            r"brokers can't be together less than ([\d.]+) points out of tolerance",
            r"together ([\d.]+) points out of tolerance",
        ):
            if said := re.search(pattern, text):
                yield from _differs(said[1], excess)
                over = float(np.maximum(0.0, peak - self.scale.limit)[part].sum())
                yield from _unless("beside load that can't be moved" in text or over <= excess + 0.001)
        if said := re.search(
            r"which leaves (?:\d+ bundles? where (?:it|they) may not be and )?(\d+) brokers? together", text
        ):
            yield from _unless(int(said[1]) == int(above.sum()))
        if text.startswith("to have no broker out of tolerance that need not be"):
            yield from _unless(not above.any())


def _unless(holds: bool) -> Iterator[str]:
    if not holds:
        yield "it does not hold"


def _differs(told: str, value: float) -> Iterator[str]:
    """The figures agree as far as they are shown."""
    if abs(float(told) - 100 * float(value)) > (0.0501 if "." in told else 0.501):
        yield f"{told} % is {100 * float(value):.2f} %"


def kinds(found: list[str]) -> Counter[str]:
    """How many sentences of each form are false."""
    return Counter(re.sub(r"[\d.]+", "#", each) for each in found)
