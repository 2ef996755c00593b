"""Workloads by name: scenarios made from a seed, or recorded loads whose keys fall into bundles.

A recording is a CSV trace of `time, key, rate`, as the counter service's `--trace` takes it: `time` in seconds, not
falling; `rate` in requests per second.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from loadmanager.errors import Invalid
from loadmanager.model.cluster import Floats
from loadmanager.strategies.playground.scenario import (
    BYTES_IN,
    BYTES_OUT,
    BYTES_PER_MESSAGE,
    CORES,
    CPU,
    MESSAGES,
    MESSAGES_PER_CORE,
    NAMESPACES,
    PLAIN,
    Scenario,
    Size,
    scenario,
    tiled,
)
from statechannel.law.bundle import position_of

NEIGHBOUR = (0.3, 0.5)
"""The fraction of a broker's cores that a foreign process takes."""
SLOWER = 5.0
DRAIN_ROUNDS = 4
AWAY_ROUNDS = 2
BIG = 0.6
"""The fraction of the largest broker's cores that one bundle needs."""


def _calm(size: Size, rng: np.random.Generator) -> Floats:
    """Loads that differ between bundles, constant in time apart from noise of 2 %."""
    noise = rng.normal(1.0, 0.02, (size.rounds, size.bundles)).clip(0.9, 1.1)
    return rng.lognormal(0.0, 0.6, size.bundles) * noise


def unequal(size: Size, rng: np.random.Generator) -> Scenario:
    """Brokers of a half, one and two times the usual size, each with equally many bundles at first."""
    return scenario("unequal", size, rng, _calm(size, rng), cores=_unequal_cores(size))


def unequal_big(size: Size, rng: np.random.Generator) -> Scenario:
    """The same brokers, and one bundle that is too large for the usual ones."""
    cores = _unequal_cores(size)
    activity = _with_a_giant(_calm(size, rng), BIG * CORES * 2, 0.5 * float(cores.sum()))
    return scenario("unequal-big", size, rng, activity, cores=cores)


def _unequal_cores(size: Size) -> Floats:
    return CORES * np.array([0.5, 1.0, 2.0])[np.arange(size.brokers) % 3]


def noisy(size: Size, rng: np.random.Generator) -> Scenario:
    """Each sixth broker has a neighbour that takes a third to a half of its cores, in the middle half of the game."""
    made = scenario("noisy", size, rng, _calm(size, rng))
    foreign = made.foreign.copy()
    struck = rng.permutation(size.brokers)[: max(1, size.brokers // 6)]
    middle = slice(size.rounds // 4, size.rounds * 3 // 4)
    foreign[middle, struck, CPU] = CORES * rng.uniform(*NEIGHBOUR, len(struck))
    return msgspec.structs.replace(made, foreign=foreign)


def grey(size: Size, rng: np.random.Generator) -> Scenario:
    """One broker's CPU becomes five times slower in the middle third, without any report of it."""
    made = scenario("grey", size, rng, _calm(size, rng), usage=0.4)
    slowness = made.slowness.copy()
    slowness[size.rounds // 3 : size.rounds * 2 // 3, rng.integers(size.brokers)] = SLOWER
    return msgspec.structs.replace(made, slowness=slowness)


def restart(size: Size, rng: np.random.Generator) -> Scenario:
    """A rolling restart: each broker drains, is away, and comes back empty, before the next one begins.

    In a game that is too short for all, the last ones stay as they are.
    """
    made = scenario("restart", size, rng, _calm(size, rng), usage=0.45)
    present, draining = made.present.copy(), made.draining.copy()
    step = max(3, size.rounds // (size.brokers + 2))
    drain = min(DRAIN_ROUNDS, step - 2)
    for broker in range(min(size.brokers, size.rounds // step - 1)):
        begin = step * (broker + 1)
        draining[begin : begin + drain, broker] = True
        present[begin + drain : begin + drain + min(AWAY_ROUNDS, step - drain), broker] = False
    return msgspec.structs.replace(made, present=present, draining=draining)


def autoscaling(size: Size, rng: np.random.Generator) -> Scenario:
    """Half of the brokers, then all, then half again (5→10→5 with ten): they come empty, and drain before they go."""
    few = max(1, size.brokers // 2)
    home = rng.permutation(size.bundles) % few
    made = scenario("autoscaling", size, rng, _calm(size, rng), home=home, usage=0.6 * few / size.brokers)
    present, draining = made.present.copy(), made.draining.copy()
    grow, shrink = size.rounds // 4, size.rounds * 5 // 8
    present[:grow, few:] = False
    draining[shrink : shrink + DRAIN_ROUNDS, few:] = True
    present[shrink + DRAIN_ROUNDS :, few:] = False
    return msgspec.structs.replace(made, present=present, draining=draining)


def big(size: Size, rng: np.random.Generator) -> Scenario:
    """One bundle needs more than half a broker, and sits among as many others as every broker has."""
    usage = 0.5
    activity = _with_a_giant(_calm(size, rng), BIG * CORES, usage * CORES * size.brokers)
    return scenario("big", size, rng, activity, usage=usage)


def _with_a_giant(activity: Floats, giant: float, total: float) -> Floats:
    """The activity with a first bundle that needs `giant` cores, of `total` for all."""
    rest = activity.sum(axis=1).mean() * (1 - giant / total)
    activity[:, 0] = 0.0
    activity *= rest / activity.sum(axis=1).mean()
    activity[:, 0] = rest * giant / (total - giant)
    return activity


def mixed(size: Size, rng: np.random.Generator) -> Scenario:
    """Three kinds of tenants: CPU, many readers, or many small messages. All resources count."""
    made = scenario("mixed", size, rng, _calm(size, rng), usage=0.4)
    kinds = np.tile(PLAIN, (3, 1))
    kinds[0, [BYTES_IN, BYTES_OUT, MESSAGES]] *= 0.3
    kinds[1, CPU] *= 0.6
    kinds[1, BYTES_OUT] *= 3.0
    kinds[2, CPU] *= 0.6
    kinds[2, MESSAGES] *= 2.5
    capacity = made.capacity.copy()
    capacity[:, [BYTES_IN, BYTES_OUT]] = CORES * MESSAGES_PER_CORE * BYTES_PER_MESSAGE * np.array([0.8, 1.2])
    capacity[:, MESSAGES] = CORES * MESSAGES_PER_CORE * 1.6
    return msgspec.structs.replace(made, profile=kinds[rng.integers(3, size=size.bundles)], capacity=capacity)


DAY_S = 86_400.0
SWING = 0.6
"""The amplitude of a day: the peak is (1 + SWING) times the mean."""
SECOND_HARMONIC = 0.2
BEAT = 0.25
"""The amplitude of the oscillation at the balancer's period: too small to count as a real change of load."""
BEAT_ROUNDS = 2


def diurnal(size: Size, rng: np.random.Generator) -> Scenario:
    """One day, whatever the number of rounds: a mean, two harmonics, and a phase for each namespace.

    The first half of the namespaces are regions around the clock; the others are pairs of tenants with opposite phases.
    1 + SWING·cos(2π(t - φ)) + SECOND_HARMONIC·cos(4π(t - φ)), t in days.
    """
    weights = rng.lognormal(0.0, 0.8, size.bundles)
    _, names, namespace = tiled(size.bundles, NAMESPACES)
    half = (len(names) + 1) // 2
    regions = np.arange(half) / half
    tenants = np.array([0.25 + 0.5 * (number % 2) for number in range(len(names) - half)])
    phases = np.concatenate([regions, tenants])[namespace] + rng.normal(0.0, 0.02, size.bundles)
    days = (np.arange(size.rounds) / size.rounds)[:, None] - phases[None, :]
    waves = 1 + SWING * np.cos(2 * np.pi * days) + SECOND_HARMONIC * np.cos(4 * np.pi * days)
    return scenario("diurnal", size, rng, weights * waves.clip(0.05), interval_s=DAY_S / size.rounds)


def oscillation(size: Size, rng: np.random.Generator) -> Scenario:
    """Two halves of the bundles oscillate in opposite phase, up in one round and down in the next.

    Each broker holds bundles of one half only. A strategy that chases the oscillation never settles.
    """
    weights = rng.uniform(0.8, 1.2, size.bundles)
    home = np.arange(size.bundles, dtype=np.int64) % size.brokers
    half = home % 2
    beats = 2 * np.pi * np.arange(size.rounds) / BEAT_ROUNDS
    waves = 1 + BEAT * np.cos(beats[:, None] + np.pi * half[None, :])
    return scenario("oscillation", size, rng, weights * waves, home=home)


CROWDS = 3
CROWD = (10.0, 30.0)
"""The factor of a bundle's load at the crowd's peak."""
RAMP_S = 120.0
HALF_LIFE_S = 600.0
CROWDED_BUNDLES = 4
HOUR_S = 3_600.0
BATCH_S = 600.0
BATCH = 2.5


def flash(size: Size, rng: np.random.Generator) -> Scenario:
    """Crowds on a few bundles of one namespace: up ten- to thirtyfold within two minutes, then half every ten minutes.

    The height of a crowd is 1 + (peak - 1) · min(1, s / RAMP_S) · 2^(-max(0, s - RAMP_S) / HALF_LIFE_S), s seconds
    after it begins.
    """
    weights = rng.lognormal(0.0, 0.5, size.bundles)
    _, names, namespace = tiled(size.bundles)
    activity = np.tile(weights, (size.rounds, 1))
    seconds = np.arange(size.rounds) * 60.0
    for begin in np.linspace(0.15, 0.65, CROWDS) * size.rounds:
        members = np.flatnonzero(namespace == rng.integers(len(names)))
        hit = rng.choice(members, min(CROWDED_BUNDLES, len(members)), replace=False)
        since = seconds - np.floor(begin) * 60.0
        rise = np.clip(since / RAMP_S, 0.0, 1.0)
        fall = 2.0 ** (-np.maximum(0.0, since - RAMP_S) / HALF_LIFE_S)
        activity[:, hit] *= 1 + (rng.uniform(*CROWD) - 1) * (rise * fall)[:, None]
    return scenario("flash", size, rng, activity)


def steps(size: Size, rng: np.random.Generator) -> Scenario:
    """One tenant is deployed (from nearly no load), one grows for a backfill, one runs a batch at every full hour."""
    weights = rng.lognormal(0.0, 0.8, size.bundles)
    _, names, namespace = tiled(size.bundles)
    deployed, backfilled, hourly = rng.permutation(len(names))[:3] if len(names) >= 3 else (0, 0, 0)
    rounds = np.arange(size.rounds)
    factors = np.ones((size.rounds, len(names)))
    factors[rounds < size.rounds // 4, deployed] *= 0.05
    factors[(rounds >= size.rounds // 2) & (rounds < size.rounds * 3 // 4), backfilled] *= 2.0
    factors[((rounds * 60.0) % HOUR_S < BATCH_S) & (rounds > 0), hourly] *= BATCH
    return scenario("steps", size, rng, weights * factors[:, namespace])


EXPONENTS = (0.6, 0.9)
"""The range of Zipf exponents. Above 1 the first bundle alone would fill a broker: that is the workload `big`."""
DRIFT = 1 / 4800
"""The fraction of all ranks by which the order turns in a round."""
BURST = 5.0
"""The factor of a bundle's load in a burst."""
TO_BURST, TO_CALM = 0.01, 0.2
"""Probabilities per round: a bundle bursts every 100 rounds, for 5."""
TAIL = 1.5
"""The exponent of the Pareto part: a finite mean, no finite variance."""
LARGEST = 30.0
"""The largest load as a multiple of the mean; what no broker can carry would not compare strategies."""


def zipf_weights(bundles: int, exponent: float) -> Floats:
    """Zipf's law: the weight of rank r (from 1) is r^-exponent, scaled to the sum 1."""
    weights = np.arange(1, bundles + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def zipf(size: Size, rng: np.random.Generator) -> Scenario:
    """Zipf weights whose ranks turn slowly: hot bundles cool down, and others get hot.

    In round t bundle i has the weight at the place `(rank_i + t · DRIFT · m) mod m` of the ring, interpolated between
    neighbouring ranks.
    """
    weights = zipf_weights(size.bundles, rng.uniform(*EXPONENTS))
    ranks = rng.permutation(size.bundles)
    # a triangle over the ring of ranks: a bundle rises and falls, and never jumps from the last rank to the first
    hill = np.concatenate([weights[::2], weights[1::2][::-1]])
    places = ranks[None, :] + np.arange(size.rounds)[:, None] * DRIFT * size.bundles
    low = np.floor(places).astype(np.int64)
    part = places - low
    activity = (1 - part) * hill[low % size.bundles] + part * hill[(low + 1) % size.bundles]
    return scenario("zipf", size, rng, activity)


def heavy(size: Size, rng: np.random.Generator) -> Scenario:
    """Log-normal and Pareto bundles, constant apart from noise of a few per cent."""
    body = rng.lognormal(0.0, 1.0, size.bundles)
    tail = rng.pareto(TAIL, size.bundles) + 1.0
    weights = np.where(rng.random(size.bundles) < 0.8, body, tail)
    weights = np.minimum(weights, LARGEST * weights.mean())
    noise = rng.normal(1.0, 0.03, (size.rounds, size.bundles)).clip(0.8, 1.2)
    return scenario("heavy", size, rng, weights * noise)


def bursty(size: Size, rng: np.random.Generator) -> Scenario:
    """Markov-modulated: each bundle is calm or bursts, and switches at random (MMPP, its rates as loads)."""
    weights = rng.lognormal(0.0, 0.7, size.bundles)
    stationary = TO_BURST / (TO_BURST + TO_CALM)
    bursts = rng.random(size.bundles) < stationary
    activity = np.empty((size.rounds, size.bundles))
    for at in range(size.rounds):
        activity[at] = weights * np.where(bursts, BURST, 1.0)
        dice = rng.random(size.bundles)
        bursts = np.where(bursts, dice >= TO_CALM, dice < TO_BURST)
    return scenario("bursty", size, rng, activity)


COLUMNS = ("time", "key", "rate")
USAGE = 0.35
"""The cluster's mean usage: a recorded day has quiet hours, and peaks."""


def recorded(path: Path, size: Size, rng: np.random.Generator) -> Scenario:
    """The whole trace, in `size.rounds` rounds. Raises Invalid, which names the line, if the file is malformed."""
    lines = list(_lines(path))
    first_s, last_s = lines[0][0], lines[-1][0]
    times = sorted({time_s for time_s, _, _ in lines})
    length_s = last_s - first_s + (times[-1] - times[-2] if len(times) > 1 else 60.0)
    bundles, _, _ = tiled(size.bundles, NAMESPACES)
    row_of = {key: _row(key, bundles_a_namespace(size.bundles)) for key in {key for _, key, _ in lines}}
    activity = np.zeros((size.rounds, len(bundles)))
    rates: dict[str, float] = {}
    for time_s, key, rate in lines:
        begin = math.ceil((time_s - first_s) / length_s * size.rounds)
        activity[begin:, row_of[key]] += rate - rates.get(key, 0.0)
        rates[key] = rate
    if not activity.sum(axis=1).mean() > 0:
        raise Invalid(f"{path}: all rates are 0; there is nothing to replay")
    return scenario("trace", size, rng, activity.clip(0.0), usage=USAGE, interval_s=length_s / size.rounds)


def bundles_a_namespace(bundles: int) -> tuple[int, ...]:
    """How many bundles each namespace of `tiled` has."""
    _, names, namespace = tiled(bundles, NAMESPACES)
    return tuple(np.bincount(namespace, minlength=len(names)).tolist())


def _row(key: str, counts: tuple[int, ...]) -> int:
    """The bundle of a key: a namespace by its hash, and there the range of its position."""
    number = position_of(key) % len(counts)
    position = position_of(f"persistent://play/ns-{number}/{key}")
    inside = min(position * counts[number] >> 32, counts[number] - 1)
    return sum(counts[:number]) + inside


def _lines(path: Path) -> Iterator[tuple[float, str, float]]:
    """Raises Invalid."""
    before_s = -math.inf
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(line for line in file if not line.startswith("#"))
            header = tuple(next(rows, ()))
            if header != COLUMNS:
                raise Invalid(f"{path}: the first line must be {','.join(COLUMNS)}, not {','.join(header)!r}")
            for number, row in enumerate(rows, 2):
                line = _parsed(f"{path}, line {number} without comments", row)
                if line[0] < before_s:
                    raise Invalid(f"{path}, line {number}: time goes back to {line[0]:g}; sort the lines by time")
                before_s = line[0]
                yield line
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {error}") from None
    if before_s == -math.inf:
        raise Invalid(f"{path}: there is no line after the first")


def _parsed(where: str, row: list[str]) -> tuple[float, str, float]:
    try:
        time_s, key, rate = float(row[0]), row[1].strip(), float(row[2])
    except (ValueError, IndexError):
        raise Invalid(f"{where}: {','.join(row)!r}; write seconds,key,requests per second") from None
    if not key or not math.isfinite(time_s) or not (rate >= 0 and math.isfinite(rate)):
        raise Invalid(f"{where}: a key is missing, or a number is negative or infinite")
    return time_s, key, rate


Workload = Callable[[Size, np.random.Generator], Scenario]

WORKLOADS: Mapping[str, Workload] = {
    "zipf": zipf,
    "diurnal": diurnal,
    "flash": flash,
    "heavy": heavy,
    "bursty": bursty,
    "steps": steps,
    "unequal": unequal,
    "unequal-big": unequal_big,
    "noisy": noisy,
    "grey": grey,
    "restart": restart,
    "autoscaling": autoscaling,
    "oscillation": oscillation,
    "big": big,
    "mixed": mixed,
}
TRACE = "trace"
"""The name of the workload from a file."""


def make(name: str, size: Size, seed: int, trace: Path | None = None) -> Scenario:
    """The scenario of a workload; the same arguments give the same scenario. Raises Invalid for an unknown name."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    if name == TRACE:
        if trace is None:
            raise Invalid("the workload trace needs a file: give it with --trace")
        return recorded(trace, size, rng)
    if name not in WORKLOADS:
        raise Invalid(f"{name!r} is not a workload; choose from {', '.join(WORKLOADS)}, or give a file with --trace")
    return WORKLOADS[name](size, rng)
