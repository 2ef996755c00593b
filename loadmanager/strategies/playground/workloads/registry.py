"""The workloads by name; makes a scenario of one from a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from loadmanager.errors import Invalid
from loadmanager.strategies.playground.scenario import Scenario, Size
from loadmanager.strategies.playground.workloads.machines import (
    autoscaling,
    big,
    grey,
    mixed,
    noisy,
    restart,
    unequal,
    unequal_big,
)
from loadmanager.strategies.playground.workloads.recorded import recorded
from loadmanager.strategies.playground.workloads.shocks import flash, steps
from loadmanager.strategies.playground.workloads.skew import bursty, heavy, zipf
from loadmanager.strategies.playground.workloads.tides import diurnal, oscillation

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
        raise Invalid(f"{name!r} is no workload; choose from {', '.join(WORKLOADS)}, or give a file with --trace")
    return WORKLOADS[name](size, rng)
