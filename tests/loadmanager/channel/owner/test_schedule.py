"""When a snapshot is due."""

from __future__ import annotations

from loadmanager.channel.owner.retention import Progress, ScheduleSettings, due

SETTINGS = ScheduleSettings(records=1_000, interval_s=60.0)


def test_many_entries_make_one_due_at_once():
    assert due(Progress(1_999, 1_000, 0.0), SETTINGS) is None
    assert due(Progress(2_000, 1_000, 0.0), SETTINGS) == "1000 entries"


def test_few_entries_make_one_due_after_a_while():
    assert due(Progress(1_001, 1_000, 59.0), SETTINGS) is None
    assert due(Progress(1_001, 1_000, 60.0), SETTINGS) == "1 entry in 60 s"
    assert due(Progress(1_002, 1_000, 60.0), SETTINGS) == "2 entries in 60 s"
    assert due(Progress(1_001, 1_000, 0.0, log_bytes=160_000), SETTINGS) == "1 entry"


def test_nothing_new_makes_none_due_unless_the_log_may_be_trimmed_further():
    assert due(Progress(1_000, 1_000, 1e6), SETTINGS) is None
    assert due(Progress(1_000, 1_000, 1e6, base_may_move=True), SETTINGS) is not None
    assert due(Progress(1_000, 1_000, 59.0, base_may_move=True), SETTINGS) is None


def test_empty_partition_gets_no_snapshot_and_the_first_follows_the_rules():
    assert due(Progress(0, None, 1e6), SETTINGS) is None
    assert due(Progress(5, None, 59.0), SETTINGS) is None
    assert due(Progress(5, None, 60.0), SETTINGS) is not None
    assert due(Progress(1_000, None, 0.0), SETTINGS) is not None


def test_a_replica_that_has_not_read_as_far_as_the_snapshot_writes_none():
    assert due(Progress(900, 1_000, 1e6, base_may_move=True), SETTINGS) is None


def test_all_partitions_share_what_a_start_may_replay():
    shared = ScheduleSettings(records=1_000, interval_s=60.0, partitions=4)
    assert due(Progress(249, None, 0.0), shared) is None
    assert due(Progress(250, None, 0.0), shared) == "250 entries"


def test_large_records_make_one_due_earlier():
    assert due(Progress(1_010, 1_000, 0.0, log_bytes=159_999), SETTINGS) is None
    assert due(Progress(1_010, 1_000, 0.0, log_bytes=160_000), SETTINGS) == "10 entries"


def test_a_large_partition_waits_until_its_snapshot_is_worth_it():
    assert due(Progress(12_499, 0, 0.0, bundles=250_000), SETTINGS) is None
    assert due(Progress(12_500, 0, 0.0, bundles=250_000), SETTINGS) is not None
    assert due(Progress(12_499, 0, 60.0, bundles=250_000), SETTINGS) is not None
