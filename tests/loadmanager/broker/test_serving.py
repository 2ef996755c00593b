"""What may be served at this moment, also as seen by a thread that is held up in the middle of asking."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.broker.serving import Claim, Serving
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Token
from statechannel.law.table import OwnershipTable
from statechannel.runtime.proofs import Proofs

BUNDLE = Bundle("t/n", 0, 0xFFFFFFFF)
TOKEN, LATER = Token(0, 0, 5), Token(0, 0, 9)


class Clock:
    """Shows `now_s`; `meanwhile` happens once, while somebody reads it."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.meanwhile: Callable[[], None] | None = None

    def __call__(self) -> float:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return self.now_s


def fresh(clock: Clock) -> tuple[Serving, Proofs]:
    proofs = Proofs(1, 2.0)
    proofs.coordination_proved(10.0)
    return Serving(OwnershipTable(1), proofs, clock), proofs


def test_served_is_what_was_begun_and_is_proved():
    clock = Clock()
    serving, _ = fresh(clock)
    assert not serving.serving(BUNDLE)
    serving.begin(BUNDLE, TOKEN)
    assert serving.claim(BUNDLE) == Claim(BUNDLE, TOKEN)
    clock.now_s = 12.0
    assert serving.claim(BUNDLE) is None


def test_what_has_ended_is_not_served():
    serving, _ = fresh(Clock())
    serving.begin(BUNDLE, TOKEN)
    serving.end(BUNDLE)
    serving.end(BUNDLE)
    assert not serving.serving(BUNDLE)


def test_a_new_incarnation_serves_nothing_of_the_former_whatever_it_proves():
    serving, _ = fresh(Clock())
    serving.begin(BUNDLE, TOKEN)
    proofs = Proofs(1, 2.0)
    proofs.coordination_proved(10.0)
    serving.adopt(proofs)
    assert not serving.serving(BUNDLE)


def test_a_thread_held_up_while_its_claim_ends_and_a_proof_comes_is_told_no():
    """Its claim was found while no proof was fresh; the proof that is fresh now does not cover that bundle."""
    clock = Clock()
    serving, proofs = fresh(clock)
    serving.begin(BUNDLE, TOKEN)
    clock.now_s = 13.0

    def moved_on() -> None:
        serving.end(BUNDLE)
        proofs.coordination_proved(12.9)

    clock.meanwhile = moved_on
    assert serving.claim(BUNDLE) is None


def test_a_thread_held_up_over_a_change_of_incarnation_is_told_no():
    clock = Clock()
    serving, proofs = fresh(clock)
    serving.begin(BUNDLE, TOKEN)

    def fenced_and_born_again() -> None:
        proofs.fence()
        born_again = Proofs(1, 2.0)
        born_again.coordination_proved(10.0)
        serving.adopt(born_again)
        serving.begin(BUNDLE, LATER)

    clock.meanwhile = fenced_and_born_again
    assert serving.claim(BUNDLE) is None
    assert serving.claim(BUNDLE) == Claim(BUNDLE, LATER)


def test_a_topic_of_an_unknown_namespace_is_not_served():
    serving, _ = fresh(Clock())
    assert serving.claim_topic(Key.parse("t/n/x")) is None


def test_listeners_hear_of_begin_and_end_once_each():
    serving, _ = fresh(Clock())
    heard: list[Claim | None] = []
    serving.listen(lambda _bundle, claim: heard.append(claim))
    serving.begin(BUNDLE, TOKEN)
    serving.end(BUNDLE)
    serving.end(BUNDLE)
    serving.begin(BUNDLE, LATER)
    serving.end_all()
    assert heard == [Claim(BUNDLE, TOKEN), None, Claim(BUNDLE, LATER), None]
