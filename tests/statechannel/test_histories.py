"""The real law under the auditor: random histories, replicas that read in another order, other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.law import table
from statechannel.law.record import Action
from statechannel.law.transitions import TABLE
from statechannel.law.verdict import Change

from .auditor import History, audit

seeds = st.integers(0, 2**32)


@settings(max_examples=120, deadline=None)
@given(seeds, st.integers(1, 150))
def test_every_history_keeps_every_promise(new_ledger, seed: int, steps: int):
    audit(new_ledger(partitions=2), seed, steps)


def test_the_histories_are_worth_auditing(new_ledger):
    """Each row of the table and each reason to refuse occurs in them."""
    rows, reasons = set(), set()
    for seed in range(25):
        ledger = new_ledger(partitions=2)
        for record, home in History(ledger, seed).steps(150):
            verdict = ledger.replay(record, home)
            if isinstance(verdict, Change):
                rows |= {(record.action, t.before.state if t.before else None) for t in verdict.transitions}
                reasons |= {refusal.reason for refusal in verdict.refused}
            else:
                reasons.add(verdict.reason)
    assert {(row.action, row.state) for row in TABLE} <= rows
    assert {action for action, _ in rows} >= {Action.CREATE, Action.MERGE, Action.DELETE_NAMESPACE}
    assert len(reasons) >= 14


@settings(max_examples=40, deadline=None)
@given(seeds, st.randoms(use_true_random=False))
def test_replicas_are_equal_at_equal_offsets_in_any_interleaving(new_ledger, seed: int, shuffle):
    one, other = new_ledger(partitions=3), table.OwnershipTable(3)
    digests: list[list[str]] = [[], [], []]
    for record, home in History(one, seed).steps(60):
        one.replay(record, home)
        digests[home].append(one.table.digest(home))
    waiting = [[entry for entry in one.log if entry[0] == partition] for partition in range(3)]
    while any(waiting):
        partition = shuffle.choice([p for p in range(3) if waiting[p]])
        _, offset, record = waiting[partition].pop(0)
        other.replay(partition, offset, record)
        assert other.digest(partition) == digests[partition][offset]
    assert [other.digest(p) for p in range(3)] == [one.table.digest(p) for p in range(3)]


REPLAY_THE_RECORDED_LOG = """
import sys
from statechannel.law import codec
from statechannel.errors import CorruptRecord
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
table = OwnershipTable(2)
for line in open(sys.argv[1], encoding="utf-8"):
    if not line.startswith("#"):
        partition, offset, _, payload = line.rstrip("\\n").split(" ", 3)
        try:
            print(table.replay(int(partition), int(offset), codec.decode(payload.encode())))
        except CorruptRecord:
            table.skip(int(partition), int(offset))
print([table.digest(p) for p in range(2)], list(table), table.holders(), [table.in_state(s) for s in State])
"""


@pytest.mark.parametrize("log", sorted((Path(__file__).parent / "recorded").glob("v*.log")), ids=lambda log: log.stem)
def test_replay_is_the_same_whatever_the_hash_seed(log: Path):
    outputs = {
        subprocess.run(
            [sys.executable, "-c", REPLAY_THE_RECORDED_LOG, str(log)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
