"""Computes the traffic of load data in a run: real reports, encoded and timed as brokers send them.

Compares two ways: all load data to all brokers through a store (Pulsar's modular manager), or each broker's load to all
and its hottest bundles only to the leader (PIP-192). Each report is written once, and read by each of its readers.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import Ints
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import Figures
from loadmanager.model.load_report import Publish, Reporter, Sample
from loadmanager.settings import Settings
from loadmanager.strategies.playground.game import Run
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, CPU, MESSAGES, Scenario, broker_names
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

KEYS, SESSIONS = 40, 20
"""Topics and connections of each bundle in the reports."""
STARTED_MS = 1_790_000_000_000


class Traffic(msgspec.Struct, frozen=True):
    """Load data of a run, in bytes; `*_read` is summed over all readers."""

    reports: int
    everything_written: int
    everything_read: int
    """With all load data to all brokers."""
    top_written: int
    top_read: int
    """With brokers' loads to all brokers, and hottest bundles to the leader."""
    hours: float


def owners_by_round(run: Run) -> Ints:
    """(T, m): the owner of each bundle after the round's moves."""
    scenario = run.scenario
    owners = np.tile(scenario.home.astype(np.int64), (scenario.rounds, 1))
    for each in run.moved:
        owners[each.round :, each.bundle] = each.destination
    return owners


def traffic(run: Run, settings: Settings) -> Traffic:
    """The load data that brokers sent in a run; both ways with the triggers of live brokers."""
    scenario = run.scenario
    owners = owners_by_round(run)
    brokers = [BrokerId(name, 1) for name in broker_names(scenario.brokers)]
    all_bundles = settings.model_copy(update={"load_top_bundles": len(scenario.bundles)})
    reporters = [(Reporter(broker, settings), Reporter(broker, all_bundles)) for broker in brokers]
    sums = np.zeros(5, np.int64)
    for at in range(scenario.rounds):
        present = np.flatnonzero(scenario.present[at])
        loads = _loads(scenario, at, owners[at])
        for row in present.tolist():
            sample = _sample(scenario, at, row, loads, owners[at])
            now_ms = int(at * scenario.interval_s * 1000)
            few, every = reporters[row]
            sums += _reported(few, every, sample, now_ms, len(present))
    reports, everything_written, everything_read, top_written, top_read = sums.tolist()
    hours = scenario.rounds * scenario.interval_s / 3600
    return Traffic(reports, everything_written, everything_read, top_written, top_read, hours)


def _reported(few: Reporter, every: Reporter, sample: Sample, now_ms: int, readers: int) -> Ints:
    """Reports; bytes written and read with everything; bytes written and read with the hottest bundles."""
    counted = np.zeros(5, np.int64)
    few.observe(sample, now_ms)
    every.observe(sample, now_ms)
    answer = few.decide(now_ms, shown=True)
    if not isinstance(answer, Publish):
        return counted
    few.published(answer.report, now_ms)
    whole = every.current()
    assert whole is not None, "it was given a sample"
    encode = msgspec.json.encode
    broker, top, bundles = (len(encode(each)) for each in (answer.report.broker, answer.report.top, whole.top))
    counted[:] = 1, broker + bundles, (broker + bundles) * readers, broker + top, broker * readers + top
    return counted


def _loads(scenario: Scenario, at: int, owners: Ints) -> list[BundleLoad]:
    return [
        BundleLoad(
            keys=KEYS,
            sessions=SESSIONS,
            in_rate_msg_s=round(row[MESSAGES] / 2, 3),
            out_rate_msg_s=round(row[MESSAGES] / 2, 3),
            in_rate_bytes_s=round(row[BYTES_IN], 1),
            out_rate_bytes_s=round(row[BYTES_OUT], 1),
            cpu_percent=round(row[CPU] * 100, 3),
        )
        for row in scenario.loads(at, owners).tolist()
    ]


def _sample(scenario: Scenario, at: int, broker: int, loads: list[BundleLoad], owners: Ints) -> Sample:
    held: dict[Bundle, BundleLoad] = {scenario.bundles[row]: loads[row] for row in np.flatnonzero(owners == broker)}
    cores = float(scenario.capacity[broker, CPU])
    used = sum(load.cpu_percent for load in held.values()) / 100 + float(scenario.foreign[at, broker, CPU])
    percent = round(100 * used / cores, 2)
    figures = Figures(percent, 40.0, cores, 16 * 2**30, percent, 40.0)
    return Sample(STARTED_MS + int(at * scenario.interval_s * 1000), figures, held)
