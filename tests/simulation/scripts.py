"""The frame of scripted runs: a cluster at rest, then the script, then everything must recover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.simulator.cluster import Life
from tests.simulator.run import Run
from tests.simulator.world import World


def scripted(script: Callable[[Run], Awaitable[None]], seed: int = 1) -> Run:
    """Three brokers that own four bundles; then the script; then everything must recover."""
    with World(seed) as world:
        run = Run(world)

        async def drive() -> None:
            await run.begin(3)
            await world.until(lambda: len(run.cluster.ready()) == 3, 30, "all are ready")
            await settle(run)
            await script(run)
            run.look_after_the_dead()
            run.checks.raise_if_broken()
            run.fault_phase.end()
            await run.recovery.prove()

        world.run(drive())
        return run


async def settle(run: Run) -> None:
    """Every bundle is assigned, and somebody leads."""
    await run.recovery._all_served()
    await run.world.until(lambda: leader(run) is not None, 30, "somebody leads")


def leader(run: Run) -> Life | None:
    return next((x for x in run.cluster.ready() if x.node is not None and x.node.current.leader.leading), None)


def follower(run: Run) -> Life:
    """One that holds something, and does not lead if there is such a one."""
    found = [x for x in run.cluster.ready() if x is not leader(run) and run.checks.served(x)]
    return found[0] if found else next(x for x in run.cluster.ready() if run.checks.served(x))


def isolate(run: Run, life: Life) -> None:
    """Cut it off from both servers, until the script ends."""
    for server in ("log", "coordination"):
        run.world.cut(str(life), server)
    run.checks.links_changed()
