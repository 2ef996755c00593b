"""Many runs, spread over processes; reports come in the order of the seeds, as soon as they are ready."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from loadmanager.simulation.run import FAULT_PHASE_S, Report, run_seed

SEEDS_A_TASK = 4


def run_seeds(seeds: Iterable[int], *, jobs: int, fault_phase_s: float = FAULT_PHASE_S) -> Iterator[Report]:
    """Run each seed once, `jobs` at a time. Closing the iterator cancels runs that have not begun."""
    run = partial(run_seed, fault_phase_s=fault_phase_s)
    if jobs == 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that may have threads is not safe
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=SEEDS_A_TASK)
        finally:
            pool.shutdown(cancel_futures=True)
