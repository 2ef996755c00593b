"""What bundles and brokers carry in a minute of a generated history: the workload's scenario, day after day. Numpy."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.generating.world import MINUTES_A_DAY, Ints, World
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, CPU, MESSAGES, Scenario, Size, broker_names
from loadmanager.strategies.playground.workloads import make

Floats = NDArray[np.float64]

MEMORY_PERCENT = 40.0
MEMORY_BYTES = 16.0 * 2**30
BASE_CORES = 0.2
"""What an idle broker uses."""
KEYS, SESSIONS = 40, 20
WEEKEND = 5
"""The first day of the weekend; Monday is 0."""


class Stage(msgspec.Struct, frozen=True, eq=False):
    """What stays the same over the whole history."""

    scenario: Scenario
    bundles: list[str]
    brokers: list[str]
    incoming: Floats
    """(m,): the part of a bundle's messages that comes in."""
    weight: Floats
    """(m,): how large its messages are, as a multiple of the workload's."""


class Loads(msgspec.Struct, frozen=True, eq=False):
    """(T, m) each, as bundles' loads are reported; at their owners."""

    in_msg: Floats
    out_msg: Floats
    in_bytes: Floats
    out_bytes: Floats
    cpu_percent: Floats
    """100 is one core."""


@lru_cache(maxsize=2)
def stage(world: World) -> Stage:
    """The stage of a world; cached, because a worker makes one day after another."""
    scenario = make(world.workload, Size(world.brokers, world.bundles, MINUTES_A_DAY), world.seed)
    rng = np.random.default_rng((world.seed, 12))
    return Stage(
        scenario,
        [str(bundle) for bundle in scenario.bundles],
        list(broker_names(world.brokers)),
        rng.uniform(0.2, 0.8, world.bundles),
        rng.lognormal(0.0, 0.5, world.bundles),
    )


def loads(world: World, minutes: Ints, owners: Ints) -> Loads:
    """What the bundles cost in these minutes of the history; `owners` (T, m)."""
    at, scenario = stage(world), stage(world).scenario
    rounds = minutes % MINUTES_A_DAY
    activity = scenario.activity[rounds] * _factors(world, minutes)
    messages = activity * scenario.profile[:, MESSAGES]
    slowness = np.take_along_axis(scenario.slowness[rounds], owners, axis=1)
    return Loads(
        in_msg=messages * at.incoming,
        out_msg=messages * (1 - at.incoming),
        in_bytes=activity * scenario.profile[:, BYTES_IN] * at.weight,
        out_bytes=activity * scenario.profile[:, BYTES_OUT] * at.weight,
        cpu_percent=100 * activity * scenario.profile[:, CPU] * slowness,
    )


def by_broker(world: World, values: Floats, owners: Ints) -> Floats:
    """(T, n): the sums over each broker's bundles."""
    count = len(values)
    cells = owners + np.arange(count)[:, None] * world.brokers
    sums = np.bincount(cells.ravel(), values.ravel(), count * world.brokers).astype(np.float64)
    return sums.reshape(count, world.brokers)


def broker_cpu_percent(world: World, minutes: Ints, cpu: Floats) -> Floats:
    """(T, n): of the broker's own cores; `cpu` (T, n) is what its bundles cost, in percent of one."""
    scenario = stage(world).scenario
    foreign = scenario.foreign[minutes % MINUTES_A_DAY][:, :, CPU]
    found: Floats = 100 * (cpu / 100 + foreign + BASE_CORES) / scenario.capacity[:, CPU]
    return found


def capacity(world: World, row: int) -> list[tuple[str, float]]:
    """What a broker declares."""
    cores = stage(world).scenario.capacity[row]
    names = {BYTES_IN: "in_rate_bytes_s", BYTES_OUT: "out_rate_bytes_s", MESSAGES: "rate_msg_s"}
    declared = [(name, float(cores[number])) for number, name in names.items() if np.isfinite(cores[number])]
    return [("cpu", float(cores[CPU])), ("memory_bytes", MEMORY_BYTES), *declared]


def _factors(world: World, minutes: Ints) -> Floats:
    """(T, m) or (T, 1): weekend and noise; a minute's noise does not depend on which minutes are asked for together."""
    days = minutes // MINUTES_A_DAY
    weekday = (days + world.begin.weekday()) % 7
    week = np.where(weekday >= WEEKEND, world.weekend, 1.0)[:, None]
    if world.noise == 0:
        return week
    drawn = [np.random.default_rng((world.seed, 13, int(minute))).standard_normal(world.bundles) for minute in minutes]
    return week * np.maximum(0.0, 1 + world.noise * np.array(drawn))
