"""`python -m tests.simulator`: runs simulated clusters from seeds, and prints the history of a failed one."""

from __future__ import annotations

import os
import sys

import click

from tests.simulator.run import FAULT_PHASE_S, Report, run_seeds


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1), help="How many seeds to run.")
@click.option(
    "--seconds",
    default=FAULT_PHASE_S,
    show_default=True,
    type=click.FloatRange(min=0, max=3600),
    help="How long faults happen in each run, in simulated seconds.",
)
@click.option("--jobs", default=None, type=click.IntRange(min=1), help="Processes to use.  [default: one a core]")
@click.option(
    "--lines",
    default=0,
    type=click.IntRange(min=0),
    help="Print only the last lines of a failing seed's history; 0: all of it.",
)
def sim(seed: int, count: int, seconds: float, jobs: int | None, lines: int) -> None:
    """Run simulated clusters: the real brokers on a virtual clock, with every fault that the seed draws.

    The same seed gives the same run. Exit code 1 if a run broke a rule; its history is printed.
    """
    reports = run_seeds(range(seed, seed + count), jobs=min(jobs or os.cpu_count() or 1, count), fault_phase_s=seconds)
    failed: list[Report] = []
    for report in reports:
        click.echo(report.line())
        if report.violation is not None:
            failed.append(report)
    if count == 1 and not failed:
        return
    if failed:
        click.echo(f"\nThe history of seed {failed[0].seed}:")
        for line in failed[0].history[-lines:]:
            click.echo(line)
        click.echo(f"\nVIOLATION: {failed[0].violation}")
        click.echo(f"Run it again: python -m tests.simulator --seed {failed[0].seed} --seconds {seconds:g}")
    click.echo(f"{count - len(failed)} of {count} seeds passed")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    sim(prog_name="python -m tests.simulator")
