"""Leases: when a service has surely stopped, while hooks, questions and answers are late, lost, or come twice.

The service of these tests keeps docs/sidecar.md. The promise: once the sidecar takes a bundle for vacated, the service
does not serve it, whatever is still on its way, until it is told to acquire it again; and it never serves beyond the
sidecar's own proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from loadmanager.sidecar.leases import NOW_S, Grant, Leases
from statechannel.law.bundle import Bundle

BUNDLES = (Bundle("a/b", 0, 1 << 30), Bundle("a/b", 1 << 30, 1 << 31), Bundle("c/d", 0, 0xFFFFFFFF))
PARTITION = {BUNDLES[0]: 0, BUNDLES[1]: 0, BUNDLES[2]: 1}
VALIDITY_S = 2.0


class Service:
    """A service that keeps the contract."""

    def __init__(self) -> None:
        self.held: set[Bundle] = set()
        self.seen: dict[Bundle, int] = {}
        self.deadline_s: dict[int, float] = {}

    def hook(self, kind: str, bundle: Bundle, sequence: int) -> bool:
        """Whether the answer is 2xx."""
        if sequence < self.seen.get(bundle, 0):
            return False
        if sequence > self.seen.get(bundle, 0):
            self.seen[bundle] = sequence
            (self.held.add if kind == "acquire" else self.held.discard)(bundle)
        return True

    def answered(self, asked_s: float, grant: Grant) -> None:
        self.deadline_s = {partition: asked_s + ms / 1000 for partition, ms in grant.valid_ms.items()}
        for bundle, sequence in grant.abandon.items():
            self.hook("abandon", bundle, sequence)

    def serves(self, bundle: Bundle, now_s: float) -> bool:
        return bundle in self.held and now_s < self.deadline_s.get(PARTITION[bundle], NOW_S)


class World(RuleBasedStateMachine):
    """One sidecar, one service, and everything between them."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 100.0
        self.leases = Leases()
        self.service = Service()
        self.until_s = [NOW_S, NOW_S]
        self.hooks: list[tuple[str, Bundle, int]] = []
        """Sent, and perhaps sent again: a hook may arrive at any time, also after its answer was given up."""
        self.answers: list[tuple[Bundle, int]] = []
        self.question: tuple[float, float | None, Grant | None] | None = None
        """When the service sent it, when it arrived, and the answer."""
        self.vacated: set[Bundle] = set()

    @rule(seconds=st.sampled_from((0.01, 0.3, 0.5, 1.9, 2.1)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(partition=st.integers(0, 1))
    def prove(self, partition: int) -> None:
        self.until_s[partition] = self.now_s + VALIDITY_S

    # --- the sidecar

    @rule(bundle=st.sampled_from(BUNDLES))
    def acquire(self, bundle: Bundle) -> None:
        """The law gives a bundle anew only after it was given up; proofs that ran out let the same owner load again."""
        self.vacated.discard(bundle)
        self.hooks.append(("acquire", bundle, self.leases.acquiring(bundle, PARTITION[bundle])))

    @rule(bundle=st.sampled_from(BUNDLES))
    def release(self, bundle: Bundle) -> None:
        self.hooks.append(("release", bundle, self.leases.releasing(bundle)))

    @rule(bundle=st.sampled_from(BUNDLES))
    def abandon(self, bundle: Bundle) -> None:
        self.hooks.append(("abandon", bundle, self.leases.abandoning(bundle)))

    @rule(bundle=st.sampled_from(BUNDLES))
    def vacate(self, bundle: Bundle) -> None:
        """As `RemoteHost.vacated`, at one moment."""
        if self.leases.vacant_at_s(bundle) is None:
            self.leases.abandoning(bundle)
        vacant_at_s = self.leases.vacant_at_s(bundle)
        if vacant_at_s is not None and vacant_at_s <= self.now_s:
            self.vacated.add(bundle)

    # --- between them

    @precondition(lambda self: self.hooks)
    @rule(data=st.data())
    def deliver_hook(self, data: st.DataObject) -> None:
        kind, bundle, sequence = data.draw(st.sampled_from(self.hooks))
        if self.service.hook(kind, bundle, sequence) and kind != "acquire":
            self.answers.append((bundle, sequence))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def deliver_answer(self, data: st.DataObject) -> None:
        self.leases.obeyed(*data.draw(st.sampled_from(self.answers)))

    @precondition(lambda self: self.question is None)
    @rule()
    def ask(self) -> None:
        self.question = (self.now_s, None, None)

    @precondition(lambda self: self.question is not None and self.question[1] is None)
    @rule()
    def question_arrives(self) -> None:
        assert self.question is not None
        self.question = (self.question[0], self.now_s, None)

    @precondition(lambda self: self.question is not None and self.question[1] is not None and self.question[2] is None)
    @rule()
    def answer_is_made(self) -> None:
        """Only then is it known what stands; the time still counts from when the question arrived."""
        assert self.question is not None
        asked_s, arrived_s, _ = self.question
        assert arrived_s is not None
        self.question = (asked_s, arrived_s, self.leases.grant(self.until_s, arrived_s))

    @precondition(lambda self: self.question is not None and self.question[2] is not None)
    @rule(lost=st.booleans())
    def answer_arrives(self, lost: bool) -> None:
        assert self.question is not None
        asked_s, _, grant = self.question
        assert grant is not None
        self.question = None
        if not lost:
            self.service.answered(asked_s, grant)

    # --- the promise

    @invariant()
    def vacated_bundles_are_not_served(self) -> None:
        if hasattr(self, "service"):
            assert not [each for each in self.vacated if self.service.serves(each, self.now_s)]

    @invariant()
    def nothing_is_served_beyond_the_proof(self) -> None:
        if hasattr(self, "service"):
            late = [
                b for b in BUNDLES if self.service.serves(b, self.now_s) and self.now_s >= self.until_s[PARTITION[b]]
            ]
            assert not late


@pytest.mark.slow
def test_vacated_bundles_are_not_served() -> None:
    chosen = settings(
        max_examples=400, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow], database=None,
    )  # fmt: skip
    run_state_machine_as_test(World, settings=chosen)


# --- each rule is needed: what happens without it, step by step

MINE = BUNDLES[0]


class Played:
    """A service that serves `MINE`, after a question at 100.0 whose answer counts until 102.0."""

    def __init__(self, leases_type: type[Leases]) -> None:
        self.leases, self.service = leases_type(), Service()
        self.until_s = 102.0
        self.service.hook("acquire", MINE, self.leases.acquiring(MINE, 0))
        self.ask(100.0)
        assert self.service.serves(MINE, 101.9)

    def ask(self, asked_s: float) -> None:
        self.service.answered(asked_s, self.leases.grant([self.until_s, NOW_S], asked_s))

    def vacated(self, now_s: float) -> bool:
        if self.leases.vacant_at_s(MINE) is None:
            self.leases.abandoning(MINE)
        return (self.leases.vacant_at_s(MINE) or NOW_S) <= now_s


def an_order_gets_lost(play: Played) -> None:
    play.leases.abandoning(MINE)
    play.until_s = 104.0
    play.ask(101.5)
    assert play.vacated(102.0)
    assert not play.service.serves(MINE, 103.0)


def nobody_obeys(play: Played) -> None:
    assert not play.vacated(101.0)
    assert play.service.serves(MINE, 101.0)
    assert play.vacated(102.0)
    assert not play.service.serves(MINE, 102.0)


def an_order_comes_without_a_hook(play: Played) -> None:
    play.vacated(101.0)
    play.ask(101.0)
    assert not play.service.serves(MINE, 101.0)


def an_answer_is_older_than_the_newest_acquire(play: Played) -> None:
    old = play.leases.abandoning(MINE)
    play.service.hook("abandon", MINE, old)
    play.service.hook("acquire", MINE, play.leases.acquiring(MINE, 0))
    play.leases.obeyed(MINE, old)
    assert play.service.serves(MINE, 101.0)
    assert not play.vacated(101.0)


def the_last_answer_got_lost(play: Played) -> None:
    play.leases.grant([101.0, NOW_S], 100.9)
    assert play.service.serves(MINE, 101.5)
    assert not play.vacated(101.5)


def the_question_was_quick(play: Played) -> None:
    play.ask(100.5)
    assert not play.service.serves(MINE, play.until_s)


class Forgetful(Leases):
    """Grants do not repeat orders."""

    def grant(self, *given: Any) -> Grant:
        return Grant(super().grant(*given).valid_ms, {})


class Early(Leases):
    """Deadlines of earlier grants do not count."""

    def abandoning(self, bundle: Bundle) -> int:
        self._ordered.setdefault(bundle, NOW_S)
        return super().abandoning(bundle)


class Stale(Leases):
    """An order has the sequence of the last hook."""

    def abandoning(self, bundle: Bundle) -> int:
        super().abandoning(bundle)
        self._held[bundle].sequence -= 1
        return self._sequence


class Credulous(Leases):
    """An answer to an older hook counts."""

    def obeyed(self, bundle: Bundle, sequence: int) -> None:
        self._held.pop(bundle, None)
        self._ordered.pop(bundle, None)


class Unsure(Leases):
    """Only the last grant's deadline counts, which may be earlier than one before."""

    def grant(self, until_s: Any, asked_s: float) -> Grant:
        self._granted_s.clear()
        return super().grant(until_s, asked_s)


class Generous(Leases):
    """The time is counted as if each question had been on its way for a second."""

    def grant(self, until_s: Any, asked_s: float) -> Grant:
        return super().grant(until_s, asked_s - 1.0)


RULES = {
    Forgetful: an_order_gets_lost,
    Early: nobody_obeys,
    Stale: an_order_comes_without_a_hook,
    Credulous: an_answer_is_older_than_the_newest_acquire,
    Unsure: the_last_answer_got_lost,
    Generous: the_question_was_quick,
}


@pytest.mark.parametrize("scenario", RULES.values(), ids=lambda scenario: scenario.__name__)
def test_a_vacated_bundle_is_not_served(scenario: Callable[[Played], None]) -> None:
    scenario(Played(Leases))


@pytest.mark.parametrize("wrong", RULES)
def test_each_rule_is_needed(wrong: type[Leases]) -> None:
    with pytest.raises(AssertionError):
        RULES[wrong](Played(wrong))


def test_a_release_is_no_order_until_it_fails() -> None:
    leases = Leases()
    leases.acquiring(BUNDLES[0], 0)
    sequence = leases.releasing(BUNDLES[0])
    assert leases.grant([110.0], 100.0).abandon == {}
    assert leases.vacant_at_s(BUNDLES[0]) is None
    assert leases.abandoning(BUNDLES[0]) == sequence + 1
    assert leases.grant([111.0], 101.0).abandon == {BUNDLES[0]: sequence + 1}
    assert leases.vacant_at_s(BUNDLES[0]) == 110.0  # the second grant said to abandon it


def test_an_expired_proof_gives_no_time() -> None:
    grant = Leases().grant([99.0, 100.0, 100.0005, 100.0019], 100.0)
    assert grant.valid_ms == {3: 1}
