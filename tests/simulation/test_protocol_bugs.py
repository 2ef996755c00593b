"""Each protocol bug that is put in on purpose is caught within a bounded number of seeds.

Each bug comes with the fault profile in which it shows soon; under the fault profile that seeds draw themselves each of
them shows too, in one of up to some hundred seeds.
"""

from __future__ import annotations

import re

import pytest

from tests.simulation import snapshot_bugs
from tests.simulation.protocol_bugs import BUGS
from tests.simulator.run import Report, run_seed

SEEDS_AT_MOST = 150

CALLS = {"lookup": 10, "write": 5, "transfer": 8, "unload": 3}
INTRUDER = {**CALLS, "trespass": 30, "slow": 3, "behaviour": 3, "suspect": 3, "crash": 1}
ECHOES = {**CALLS, "transfer": 20, "unload": 8, "echo": 8, "behaviour": 3, "slow": 3, "suspect": 2}
ORPHANS = {**CALLS, "suspect": 5, "cut": 3, "isolate": 1, "stutter": 2}
EXPIRED = {**ORPHANS, "cut": 12, "isolate": 3}
"""Suspicions alone hardly end a broker that lives; a cut from both servers does, of which the log's lasts longer."""
TWINS = {**CALLS, "twin": 3, "suspect": 3, "cut": 2, "isolate": 1}
MOVES = {**CALLS, "crash": 1, "suspect": 2}
AGES = {**CALLS, "split": 4, "merge": 3, "create or delete": 4, "snapshot": 6, "pause": 3, "crash": 2}
HAND_OFFS = {**CALLS, "transfer": 30, "slow": 4, "behaviour": 4, "pause": 2}

OWNER, AUTHOR, SEEN, EPOCH = (f"breaks {invariant}:" for invariant in ("owner", "author", "seen", "epoch"))
HOLDER = "breaks (owner|author):"  # whichever comes first: the bundle is taken, or its former holder writes
WRONG_SERVER = "while the log says"
DIFFERS, UNLISTED, REPLICA = "SNAPSHOT AND REPLAY DIFFER", "the snapshots of partition", "the replica of"

CAUGHT: dict[str, tuple[dict[str, int], str]] = {
    "any_broker_may_release": (INTRUDER, OWNER),
    "any_broker_may_say_ready": (INTRUDER, AUTHOR),
    "any_broker_may_create_children": ({**INTRUDER, "split": 20}, AUTHOR),
    "a_release_to_nobody_may_assign": (MOVES, "breaks entry:"),
    "revisions_are_not_checked": (ECHOES, SEEN),
    "epochs_are_not_checked": ({**INTRUDER, "suspect": 10, "isolate": 5, "leader": 3}, EPOCH),
    "owners_are_matched_by_name_in_the_law": ({**INTRUDER, "crash": 2}, HOLDER),
    "the_token_stays_when_the_holder_changes": (MOVES, "breaks token:"),
    "a_replica_goes_back": (MOVES, "went back"),
    "a_late_copy_is_taken_for_the_verdict": (
        {**CALLS, "split": 10, "merge": 10, "echo": 10, "cut": 6, "outage": 3, "isolate": 3},
        "says that record",
    ),
    "proofs_count_from_the_answer": ({**CALLS, "stutter": 5}, WRONG_SERVER),
    "channel_proofs_are_not_read_back": (ORPHANS, "cut off from both servers"),
    "incarnations_are_not_checked": (TWINS, WRONG_SERVER),
    "the_leader_does_not_wait": (ORPHANS, WRONG_SERVER),
    "the_leader_does_not_raise": (EXPIRED, WRONG_SERVER),
    "the_leader_does_not_revoke": (ORPHANS, OWNER),
    "the_agent_serves_before_it_has_acquired": (MOVES, "its host acquired it under None"),
    "the_agent_serves_until_it_has_released": (MOVES, WRONG_SERVER),
    "the_agent_matches_owners_by_name": (TWINS, WRONG_SERVER),
    "the_next_incarnation_keeps_the_claims": (TWINS, WRONG_SERVER),
    "decisions_forget_the_rest_times": (CALLS, "within its rest"),
    "the_channel_is_compacted": (AGES, REPLICA),
    "the_log_is_trimmed_beyond_the_snapshots": (AGES, "is trimmed to"),
    "the_log_is_trimmed_before_the_list_is_committed": (AGES, "is trimmed to"),
    "a_deposed_owner_is_not_fenced": (AGES, UNLISTED),
    "an_owner_does_not_read_what_is_there": (AGES, UNLISTED),
    "a_snapshot_forgets_the_epoch": (AGES, DIFFERS),
    "a_snapshot_forgets_the_incarnations": (AGES, DIFFERS),
    "a_snapshot_forgets_the_genesis": (AGES, DIFFERS),
    "a_snapshot_forgets_deleted_namespaces": (AGES, DIFFERS),
    "a_snapshot_forgets_hand_offs": (HAND_OFFS, DIFFERS),
    "a_snapshot_forgets_how_to_split": (AGES, DIFFERS),
    "a_snapshot_forgets_targets": (AGES, DIFFERS),
    "a_snapshot_forgets_moves": (AGES, DIFFERS),
    "a_snapshot_takes_revisions_for_tokens": (AGES, DIFFERS),
    "a_reader_mixes_chunks_of_two_snapshots": (AGES, f"{DIFFERS}: the replica that"),
    "a_replica_skips_what_was_trimmed": (AGES, REPLICA),
    "a_replica_goes_back_to_a_snapshot": (AGES, "went back"),
    "nobody_hears_of_a_reload": ({**CALLS, "split": 5, "merge": 5, "behind": 6}, "serve"),
}


def first_caught(name: str, fault_profile: dict[str, int], seeds: int) -> Report | None:
    for seed in range(1, seeds + 1):
        report = run_seed(seed, fault_profile=fault_profile)
        if report.violation is not None:
            return report
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_a_protocol_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault_profile, told = CAUGHT[name]
    BUGS[name](monkeypatch)
    report = first_caught(name, fault_profile, SEEDS_AT_MOST)
    assert report is not None, f"{name} was not caught in {SEEDS_AT_MOST} seeds"
    assert re.search(told, report.violation or "")
    assert report.history


def test_no_bug_is_left_out() -> None:
    assert BUGS.keys() == CAUGHT.keys()
    assert {bug.__module__ for bug in BUGS.values()} >= {snapshot_bugs.__name__}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault_profile", [INTRUDER, ECHOES, ORPHANS, TWINS, MOVES, AGES, HAND_OFFS, {"stutter": 1, "lookup": 1}]
)
def test_without_a_bug_the_same_faults_break_nothing(fault_profile: dict[str, int]) -> None:
    assert first_caught("none", fault_profile, 10) is None
