"""What speaks against a bundle and for it: on the records of real tables, in a simulated world of brokers that crash,
stop, and are cut off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log10
from typing import Any

import pytest

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.leader.quarantine.evidence import Death, Evidence, Lived, density, evidence_against, survival
from loadmanager.leader.quarantine.fates import Processes
from loadmanager.leader.quarantine.losses import Fate, Loss, Losses, fate_record
from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.leader.quarantine.trials import LOCKED, lock_of
from loadmanager.model.policies.model import BundlePolicy, Policy
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings.documents.model import Version
from loadmanager_api.explaining import LiveView
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Role
from statechannel.law.transitions import State
from tests.loadmanager.leader.splitting.fault_profile import FAULTS, deadly, history, names
from tests.loadmanager.leader.splitting.town import GONE_S, LEADER, LEAST, RETRY_S, WINDOW_S, Town

CALM_S = 1_000.0


def town(brokers: int = 4, bundles: int = 4, kills_s: float | None = None, seed: int = 1) -> Town:
    """One that has been calm for a while; its first bundle kills, if it is said how soon, once it is `deadly`."""
    made = Town(random.Random(seed), brokers, bundles, lambda b, _: kills_s if b == made.deadly else None)
    assert made.run_until(made.all_served)
    made.run(CALM_S)
    return made


def holder(made: Town, bundle: Bundle) -> str:
    broker = made.entry(bundle).holder
    assert broker is not None
    return broker.name


def move(made: Town, bundle: Bundle) -> str:
    """To another broker, which it names; it has it now."""
    to = next(name for name in names(made) if name != holder(made, bundle))
    made.transfer(bundle, to)
    made.run(1.0)
    return to


def score(made: Town, bundle: Bundle) -> float:
    return made.quarantine.evidence(bundle).proven.score


# --- what counts, and what does not


def test_crash_soon_after_an_assignment_counts_once_the_broker_restarted():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=5.0)
    made.run_until(lambda: bundle in made.quarantine)
    found = made.quarantine.evidence(bundle)
    assert found.feared.score > 1 > found.proven.score == 0, "not known yet"
    assert "not known yet whether it crashed" in str(found.steps[-1])
    made.run(10.0)
    assert score(made, bundle) == pytest.approx(found.feared.score)
    loss = made.quarantine.losses.get(found.steps[-1].step.broker)
    assert loss is not None
    assert "another process runs as" in loss.why


def test_a_name_that_does_not_come_back_has_crashed_when_it_is_gone_for_good():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=None)
    made.run(GONE_S / 2)
    assert score(made, bundle) == 0
    made.run(GONE_S)
    assert score(made, bundle) > 1


@pytest.mark.parametrize("fault", ["stop", "refuse", "lose_session"])
def test_a_process_that_comes_back_clears_what_was_held_against_the_bundle(fault: str):
    made = town()
    bundle = made.bundles[0]
    getattr(made, fault)(move(made, bundle), 8.0)
    made.run(7.0)
    assert made.quarantine.evidence(bundle).feared.score > 1
    made.run(10.0)
    found = made.quarantine.evidence(bundle)
    assert found.feared.score == found.proven.score == 0
    assert "but its process lives" in str(found.steps[-1])


def test_return_of_a_broker_that_was_given_up_clears_the_bundle():
    made = town()
    bundle = made.bundles[0]
    made.stop(move(made, bundle), 3 * GONE_S)
    made.run(2 * GONE_S)
    assert score(made, bundle) > 1
    made.run(2 * GONE_S)
    assert score(made, bundle) == 0


def test_who_was_draining_left_on_purpose():
    made = town()
    bundle = made.bundles[0]
    machine = made.machines[move(made, bundle)]
    machine.draining = True
    made.run(1.0)
    made.trials.processes.saw(made.peers(), made.now_ms)
    made.kill(machine.name, back_after_s=None)
    made.run(2 * GONE_S)
    assert score(made, bundle) == 0


def test_one_death_of_a_process_counts_once_however_many_incarnations_it_had():
    made = town()
    bundle = made.bundles[0]
    name = move(made, bundle)
    made.refuse(name, 3.0)
    made.run(60.0)
    made.transfer(bundle, name)
    made.run(1.0)
    made.kill(name, back_after_s=3.0)
    made.run(60.0)
    deaths = [w for w in made.quarantine.evidence(bundle).steps if not isinstance(w.step, Lived)]
    assert [w.fate for w in deaths] == [Fate.LIVES, Fate.CRASHED]


def test_late_death_and_voluntary_release_clear_the_bundle():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=3.0)
    made.run(60.0)
    first = score(made, bundle)
    made.run(WINDOW_S)
    move(made, bundle)
    assert 0 < score(made, bundle) < first
    made.run(WINDOW_S + 1)
    made.kill(holder(made, bundle), back_after_s=3.0)
    made.run(60.0)
    assert score(made, bundle) < first / 2


def test_a_crash_in_turmoil_proves_little_and_one_among_many_proves_nothing():
    calm, turmoil, rack = town(brokers=8), town(brokers=8), town(brokers=8)
    bundle = calm.bundles[0]
    for made, others in ((calm, 0), (turmoil, 1), (rack, 5)):
        to = move(made, bundle)
        for name in [name for name in made.machines if name != to][:others]:
            made.kill(name, back_after_s=4.0)
        made.run(5.0 if others == 1 else 0.0)
        made.kill(to, back_after_s=4.0)
        made.run(60.0)
    assert score(calm, bundle) > score(turmoil, bundle) + 0.5
    assert score(rack, bundle) < 0.1


def test_losses_of_brokers_that_held_nothing_count_as_turmoil_too():
    calm, turmoil = town(brokers=6, bundles=1), town(brokers=6, bundles=1)
    bundle = calm.bundles[0]
    to = move(turmoil, bundle)
    turmoil.kill(next(name for name in turmoil.machines if name != to), back_after_s=4.0)
    turmoil.run(12.0)
    turmoil.kill(to, back_after_s=4.0)
    calm.kill(move(calm, bundle), back_after_s=4.0)
    for made in (calm, turmoil):
        made.run(60.0)
    assert score(calm, bundle) > score(turmoil, bundle) + 0.5


def test_a_bundle_that_is_stuck_and_revoked_for_it_killed_nobody():
    made = town()
    bundle = made.bundles[0]
    broker = made.entry(bundle).holder
    assert broker is not None
    made.write(Action.REVOKE, LEADER, Role.LEADER, bundle, reason="stuck in assigning for 30 s")
    made.write(Action.RELEASE, LEADER, Role.LEADER, bundle)
    assert bundle not in made.quarantine
    assert broker not in made.quarantine.losses


def test_lost_transfer_target_counts_against_a_bundle_and_a_stuck_one_not():
    made = town()
    bundle = made.bundles[0]
    for reason, suspect in ((STUCK, False), ("it is silent", True)):
        made.write(Action.TRANSFER, LEADER, Role.LEADER, bundle, to=_another(made, bundle))
        made.write(Action.CANCEL, LEADER, Role.LEADER, bundle, reason=reason)
        assert (bundle in made.quarantine) == suspect


def _another(made: Town, bundle: Bundle) -> BrokerId:
    return next(m.broker for m in made.machines.values() if m.name != holder(made, bundle))


def test_broker_taken_for_dead_that_releases_the_bundle_counts_for_nothing():
    made = town()
    bundle = made.bundles[0]
    move(made, bundle)
    broker = made.entry(bundle).holder
    assert broker is not None
    made.write(Action.REVOKE, LEADER, Role.LEADER, bundle, reason=f"{ORPHAN}silent")
    assert bundle in made.quarantine
    made.write(Action.RELEASE, broker, Role.BROKER, bundle)
    assert bundle not in made.quarantine


def test_the_parts_of_a_suspect_are_suspects_and_so_is_what_they_become():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=3.0)
    made.run(60.0)
    known, by = score(made, bundle), made.entry(bundle).holder
    assert by is not None
    made.write(Action.CREATE, by, Role.BROKER, bundle, boundaries=(bundle.lo + 5,))
    low, high = made.bundles[:2]
    assert score(made, low) == score(made, high) == known > 1
    made.write(Action.MERGE, by, Role.BROKER, low, high)
    assert score(made, bundle) == known


def test_pardon_forgives_the_past_also_for_those_who_read_it_first():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=3.0)
    made.run(60.0)
    early = Quarantine(lambda: 4)
    early.pardon(bundle, made.now_ms)
    for change in made.changes:
        early.observe(change, WINDOW_S)
    made.quarantine.pardon(bundle, made.now_ms)
    assert bundle not in early
    assert bundle not in made.quarantine
    made.kill(move(made, bundle), back_after_s=3.0)
    made.run(60.0)
    assert score(made, bundle) > 0


def test_who_replays_the_records_comes_to_the_same_result():
    made = deadly(3, 1.0, 5.0)
    assert made.locked
    replayed = Quarantine(lambda: len(made.machines))
    for change in made.changes:
        replayed.observe(change, WINDOW_S)
    assert [replayed.evidence(b) for b in made.bundles] == [made.quarantine.evidence(b) for b in made.bundles]


def test_the_model_is_one_of_probabilities():
    for window_s in (10.0, 600.0):
        steps = [i * window_s / 20_000 for i in range(20_000)]
        whole = sum(density(at_s, window_s) for at_s in steps) * window_s / 20_000
        assert whole == pytest.approx(1 - survival(window_s, window_s), rel=0.05)
        assert survival(0, window_s) == 1
        assert density(window_s + 1, window_s) == 0


# --- fates, by registrations


@pytest.mark.parametrize(
    ("now", "after_s", "fate"),
    [
        (None, 10, None),
        (None, 70, Fate.GONE),
        (Peer(BrokerId("a:1", 1), Registration(started_ms=5)), 10, None),
        (Peer(BrokerId("a:1", 1), Registration(started_ms=5)), 70, Fate.LIVES),
        (Peer(BrokerId("a:1", 2), Registration(started_ms=5)), 10, Fate.LIVES),
        (Peer(BrokerId("a:1", 2), Registration(started_ms=6)), 10, Fate.CRASHED),
    ],
)
def test_fate_of_a_lost_broker_follows_from_registrations_of_its_name(
    now: Peer | None, after_s: int, fate: Fate | None
):
    processes, lost = Processes(), BrokerId("a:1", 1)
    processes.saw({"a:1": Peer(lost, Registration(started_ms=5))}, 0)
    loss = Loss(lost, 1000, 900, calm_s=10, share=0.5, danger=0)
    found = processes.fate(loss, {} if now is None else {"a:1": now}, 1000 + after_s * 1000, gone_s=60)
    assert (None if found is None else found.fate) == fate


@pytest.mark.parametrize(("started_ms", "fate"), [(800, Fate.LIVES), (950, Fate.CRASHED), (90_000, Fate.LIVES)])
def test_process_never_seen_is_judged_by_the_clock_and_the_same_in_doubt(started_ms: int, fate: Fate):
    loss = Loss(BrokerId("a:1", 1), 1000, 900, calm_s=10, share=0.5, danger=0)
    now = {"a:1": Peer(BrokerId("a:1", 2), Registration(started_ms=started_ms))}
    found = Processes().fate(loss, now, 100_000, gone_s=60)
    assert found is not None
    assert found.fate is fate


def test_broker_that_vanished_and_returned_is_not_noted_and_one_away_is():
    processes, losses = Processes(), Losses()
    two = {name: Peer(BrokerId(name, 1), Registration(started_ms=5)) for name in ("a:1", "b:1")}
    processes.saw(two, 0)
    processes.saw({}, 1000)
    processes.saw({"a:1": two["a:1"]}, 1500)
    assert processes.unnoted(losses, 2000) == []
    assert [found.broker.name for found in processes.unnoted(losses, 4000)] == ["b:1"]


# --- the cases that locked up bundles that had harmed nobody


def test_two_that_were_stopped_and_one_whose_port_refused_lock_up_nothing():
    for seed in range(20):
        made = town(brokers=3, bundles=12, seed=seed)
        first, second, _ = made.machines
        made.stop(first, 8.0)
        made.run_until(made.all_served)
        made.refuse(second)
        made.run_until(made.all_served)
        made.refuse(first, 4.0)
        made.run(600.0)
        assert not made.locked
        assert all(made.quarantine.evidence(bundle).proven.score == 0 for bundle in made.bundles)
        assert made.all_served()


def test_rolling_kills_of_four_each_after_all_is_served_lock_up_nothing():
    for seed in range(20):
        made = town(brokers=4, bundles=12, seed=seed)
        for name in names(made):
            made.kill(name, back_after_s=4.0)
            made.run(1.5)
            assert made.run_until(made.all_served, 600.0)
        made.run(600.0)
        assert not made.locked
        assert made.all_served()


def test_crashes_of_one_flapping_broker_lock_nothing_even_after_another():
    """For then the losses of the last hour say that its own turn is a rare one."""
    before, held_s = ["b1:1"] * 28, (12.2, 145.3, 1.6)
    found = crashes(["b3:1"] * 3, brokers=8, held_s=held_s, every_s=200, before=before)
    assert [step.fate for step in found.steps] == [Fate.CRASHED] * 3
    assert not found.is_to_be_locked(LEAST)


@pytest.mark.parametrize("seed", [105_328, 500_331, 500_461])
def test_histories_that_have_locked_up_an_innocent_bundle_do_so_no_more(seed: int):
    """A broker that flaps after another one did; rolling kills, each after all is served, after a broker flapped, and
    among three brokers."""
    made = history(seed)
    assert not made.locked
    assert made.all_served()


def test_bundle_of_three_deaths_in_a_row_at_one_broker_goes_to_another():
    made = town(brokers=4, bundles=4)
    bundle = made.bundles[0]
    restless = move(made, bundle)
    for _ in range(3):
        made.kill(restless, back_after_s=1.0)
        made.run(6.0)
        made.transfer(bundle, restless)
        made.run(1.0)
    assert made.quarantine.evidence(bundle).watched
    assert made.entry(bundle).state is State.UNASSIGNED, "held back"
    emptiest = min(made.alive(), key=lambda m: (made.table.count_held_by(m.broker), -m.started_ms))
    assert made.run_until(made.all_served, 900.0)
    assert emptiest.name == restless != holder(made, bundle)


def test_crashes_of_one_broker_prove_less_than_several_but_not_nothing():
    def locked_after(*of: str) -> int:
        for deaths in range(1, 30):
            if crashes([of[i % len(of)] for i in range(deaths)]).is_to_be_locked(LEAST):
                return deaths
        return 99

    assert locked_after("a:1", "b:1", "c:1", "d:1") == LEAST
    assert LEAST < locked_after("a:1") <= 6


def test_crashes_right_after_an_assignment_do_not_count_for_much():
    assert crashes(["a:1"], brokers=2, held_s=1.0, every_s=2400).proven.score < log10(16)
    late = crashes(["a:1"], brokers=2, held_s=20.0, every_s=2400)
    assert late.proven.score > log10(16), "who waits for that does not wait longer"


def crashes(
    of: list[str],
    brokers: int = 12,
    held_s: float | tuple[float, ...] = 4.0,
    every_s: int = 200,
    before: Sequence[str] = (),
) -> Evidence:
    """What brokers say that crashed in turn, each so long after it was given a bundle; others crashed before that did
    not have it."""
    losses, steps, at_ms = Losses(), list[Death](), 1
    losses.watch(at_ms)
    for number, name in enumerate([*before, *of]):
        at_ms += every_s * 1000
        broker, at = BrokerId(name, number + 1), number - len(before)
        losses.lost(broker, at_ms, 0, brokers, 0.0)
        losses.take_fate(fate_record(LEADER, 1, broker, Fate.CRASHED, "another process runs"))
        if at >= 0:
            seconds = held_s[at] if isinstance(held_s, tuple) else held_s
            steps.append(Death(broker, at_ms, int(seconds * 1000), taking=False, danger=0.0))
    return evidence_against(Bundle("t/n", 0, 9), steps, losses, WINDOW_S)


@pytest.mark.parametrize("seed", range(100))
def test_no_innocent_bundle_is_locked_up_whatever_befalls_the_brokers(seed: int):
    made = history(seed)
    assert not made.locked
    assert made.all_served(), "nor is it kept from being served for ever"


# --- deadly ones


@pytest.mark.parametrize("bundles", [1, 12])
def test_a_deadly_bundle_is_locked_up_alone_or_in_a_crowd_and_no_other(bundles: int):
    for seed in range(10):
        made = town(brokers=5, bundles=bundles, kills_s=2.0, seed=seed)
        made.deadly = made.bundles[0]
        move(made, made.deadly)
        assert made.run_until(made.has_locked, 3_600.0)
        assert [bundle for bundle, _ in made.locked] == [made.deadly]
        assert LEAST <= made.verdict_after[made.deadly] <= 7


def test_a_deadly_bundle_is_locked_up_where_one_broker_alone_may_take_it():
    for brokers in (1, 5):
        for seed in range(10):
            made = town(brokers=brokers, bundles=1, kills_s=2.0, seed=seed)
            made.only = names(made)[0]
            made.transfer(made.bundles[0], made.only)
            made.deadly = made.bundles[0]
            made.kill(made.only, 2.0)
            assert made.run_until(made.has_locked, 36_000.0)
            assert LEAST <= made.verdict_after[made.deadly] <= 12


@pytest.mark.parametrize("chance", [1.0, 0.7])
@pytest.mark.parametrize("seed", range(30))
def test_a_deadly_bundle_is_locked_up_within_the_bound(chance: float, seed: int):
    made = deadly(seed, chance, 60.0)
    assert [bundle for bundle, _ in made.locked] == [made.deadly]
    assert made.verdict_after[made.bundles[0] if made.deadly is None else made.deadly] <= (15 if chance == 1 else 50)


def test_verdict_needs_more_when_more_is_asked_and_never_comes_for_zero():
    made = deadly(5, 1.0, 5.0)
    assert made.deadly is not None
    found = made.quarantine.evidence(made.deadly)
    assert found.is_to_be_locked(LEAST)
    assert not found.is_to_be_locked(LEAST + 3)
    assert not found.is_to_be_locked(0)
    assert not made.quarantine.held_back(made.deadly, 0, made.now_ms), "nor is it held back"


def test_it_explains_itself_step_by_step():
    made = deadly(5, 1.0, 5.0)
    assert made.deadly is not None
    nobody: Any = None
    said = LiveView(nobody, nobody, made.quarantine).evidence(made.deadly)
    assert said[0] == str(made.quarantine.evidence(made.deadly)) == made.locked[0][1]
    assert len(said) == 1 + len(made.quarantine.evidence(made.deadly).steps)
    assert all("odds x" in step or "counts for nothing" in step for step in said[1:])
    assert LiveView(nobody, nobody, made.quarantine).evidence(Bundle("t/other", 0, 9)) == ()


def test_locked_bundle_is_retried_alone_at_doubling_times_until_harmless():
    made = town(brokers=4, bundles=8, kills_s=2.0)
    made.deadly = poison = made.bundles[0]
    move(made, poison)
    made.run_until(made.has_locked, 3_600.0)
    since_s, deaths = made.now_s, made.deaths_of[poison]
    while made.locks[poison].tries < 3:
        tries = made.locks[poison].tries
        assert made.run_until(lambda known=tries: made.locks[poison].tries > known, 36_000.0)
        assert made.now_s - since_s >= RETRY_S * 2**tries
        since_s = made.now_s
    assert made.deaths_of[poison] == deaths + 3, "one broker for each"
    assert "tried again 3 times, the last time" in made.locks[poison].why
    made.deadly = None
    assert made.run_until(lambda: not made.locks, 36_000.0)
    assert "lives with it" in made.let_go[-1][1]
    assert made.entry(poison).state is State.ASSIGNED
    assert poison not in made.quarantine


def test_two_locked_ones_are_not_tried_at_one_broker():
    made = town(brokers=2, bundles=8)
    for bundle in made.bundles[:2]:
        broker = made.entry(bundle).holder
        assert broker is not None
        made.lock(bundle)
        made.write(Action.UNLOAD, broker, Role.BROKER, bundle)
        made.write(Action.RELEASE, broker, Role.BROKER, bundle)
    assert made.run_until(lambda: all(made.entry(b).holder is not None for b in made.bundles[:2]), 3_600.0)
    assert holder(made, made.bundles[0]) != holder(made, made.bundles[1])


def test_a_lock_ends_at_once_when_those_who_were_taken_for_dead_come_back():
    made = town(brokers=8, bundles=8)
    bundle = made.bundles[0]
    for _ in range(8):
        if made.locked:
            break
        made.run_until(lambda: made.entry(bundle).state is State.ASSIGNED, 3_600.0)
        made.stop(holder(made, bundle), 1e6)
        made.run(2 * GONE_S)
    assert [bundle for bundle, _ in made.locked] == [bundle], "who is away for so long is taken for dead"
    for name in [name for name, machine in made.machines.items() if not machine.up]:
        made.resume(name)
    assert made.run_until(lambda: not made.locks, RETRY_S / 2)
    assert made.let_go[0] == (bundle, "brokers that were taken for dead came back")


# --- held back


def test_watched_bundle_is_held_back_for_the_leader_but_not_for_ever():
    made = town(brokers=6, bundles=6, kills_s=1.0)
    made.deadly = poison = made.bundles[0]
    move(made, poison)
    made.run_until(lambda: made.quarantine.evidence(poison).watched)
    found = made.quarantine.evidence(poison)
    assert found.last is not None
    at_ms, pause_s = found.last.step.at_ms, made.quarantine.pause_s(found)
    assert "held back for" in made.quarantine.held_back(poison, LEAST, at_ms + 1_000)
    assert "until no broker is lost" in made.quarantine.held_back(poison, LEAST, at_ms + int(pause_s * 1000) + 1)
    assert not made.quarantine.held_back(poison, LEAST, at_ms + int(pause_s * 4000) + 61_000)
    assert not made.quarantine.held_back(poison, LEAST, 0), "by a clock that is far off"


def test_one_death_holds_nothing_back():
    made = town()
    bundle = made.bundles[0]
    made.kill(move(made, bundle), back_after_s=3.0)
    made.run_until(lambda: bundle in made.quarantine)
    assert not made.quarantine.held_back(bundle, LEAST, made.now_ms)


# --- locks, by the versions of their policies


def version(number: int, text: str, reason: str) -> Version[Policy]:
    return Version("bundle/x", number, BundlePolicy(quarantined=text), "a", number * 1000, reason, number)


def test_lock_belongs_to_the_leader_by_its_text_and_counts_its_trials():
    bundle = Bundle("t/n", 0, 9)
    mine, again = version(1, "it kills", LOCKED), version(2, "it kills; tried again 1 times", LOCKED)
    lock = lock_of(bundle, [mine, again])
    assert lock is not None
    assert (lock.tries, lock.since_ms, lock.why) == (1, 2000, "it kills; tried again 1 times")
    assert lock.due_ms(600) == 2000 + 2 * 600_000
    assert lock_of(bundle, [mine, version(3, "", "let go")]) is None
    assert lock_of(bundle, [mine, version(3, "a person says so", "")]) is None
    weighed: Version[Policy] = Version(
        "bundle/x", 3, BundlePolicy(quarantined="it kills", weight=2.0), "me", 9000, "", 3
    )
    kept = lock_of(bundle, [mine, weighed])
    assert kept is not None
    assert kept.since_ms == 1000, "who changes something else does not make it his"
    assert lock_of(bundle, [mine, version(3, "", ""), version(4, "again", LOCKED)]) == lock_of(
        bundle, [version(4, "again", LOCKED)]
    )


def test_the_faults_do_what_they_say():
    """Else the histories would prove nothing."""
    for fault in FAULTS:
        crashed = 0
        for seed in range(5):
            made = town(brokers=5, bundles=12, seed=seed)
            fault(made)
            made.run(2 * GONE_S)
            crashed += sum(loss.fate is Fate.CRASHED for loss in made.lost())
        assert (crashed > 0) == (fault.__name__ not in ("stops", "ports_and_sessions", "moves", "calm")), fault
