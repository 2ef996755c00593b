"""The demo's script: each act begins at its share of the time, or later if the one before is not over."""

from __future__ import annotations

import asyncio
import time

from loadmanager.demo.options import BUNDLES, NAMESPACE
from loadmanager.demo.stage import SETTLE_S, Member, Stage

JOIN, BY_HAND, KILL, RETURN, KILL_LEADER, RETURN_AGAIN, DRAIN = 0.10, 0.24, 0.34, 0.52, 0.58, 0.78, 0.84
"""When each act begins, as a share of the whole."""

TRANSFERS_BY_HAND = 6


async def play(stage: Stage) -> None:
    """Play the whole script, from the first broker to the audit."""
    await overture(stage)
    begun_s = time.monotonic()
    seconds = stage.options.seconds

    async def at(share: float) -> None:
        await asyncio.sleep(max(0.0, begun_s + share * seconds - time.monotonic()))

    await at(JOIN)
    joined = await join(stage)
    await at(BY_HAND)
    await by_hand(stage, joined)
    await at(KILL)
    killed = await kill_an_owner(stage)
    await at(RETURN)
    await come_back(stage, killed)
    await at(KILL_LEADER)
    leader = await kill_the_leader(stage)
    await at(RETURN_AGAIN)
    await come_back(stage, leader)
    await at(DRAIN)
    await drain(stage)
    await at(1.0)
    stage.note("the load ends; the demo compares what was acknowledged with what is stored", "act")
    await stage.finish_load()


async def overture(stage: Stage) -> None:
    """Start brokers, bundles and load."""
    count = stage.options.brokers
    await stage.start_brokers(count)
    labels = ", ".join(sorted(m.label for m in stage.up()))
    stage.note(f"{labels} are ready; {BUNDLES} bundles wait for their first lookup", "good")
    port = stage.up()[0].name.rpartition(":")[2]
    stage.note(f"the dashboard is at http://localhost:{port}/ while the demo runs")
    await stage.watch.wait_for(lambda: len(stage.watch.bundles(NAMESPACE)) == BUNDLES, timeout_s=SETTLE_S)
    await stage.first_owners()
    stage.note(f"all bundles have owners; {stage.options.rate_s:g} increments/s begin", "act")
    stage.note(f"late: answered, but over 100 ms after it was due; failed: no answer in {stage.options.budget_s:g} s")
    await stage.start_load()


async def join(stage: Stage) -> Member:
    """Start one more broker; the leader's balancing gives it its part."""
    stage.note("one more broker is started", "act")
    member = await stage.start_broker()
    stage.note(f"{member.label} has joined; balancing will give it its share", "good")
    return member


async def by_hand(stage: Stage, to: Member) -> None:
    """Transfer some bundles of the broker with the most, one after the other."""
    source = max((m for m in stage.up() if m is not to), key=lambda m: len(stage.watch.held_by_name(m.name)))
    bundles = stage.watch.held_by_name(source.name)[:TRANSFERS_BY_HAND]
    stage.note(f"{len(bundles)} bundles are moved by hand from {source.label} to {to.label}", "act")
    for bundle in bundles:
        await stage.transfer(bundle, to)


async def kill_an_owner(stage: Stage) -> Member:
    """Kill the follower with the most bundles."""
    leader = await stage.led_by()
    followers = [m for m in stage.up() if m is not leader]
    member = max(followers, key=lambda m: len(stage.watch.held_by_name(m.name)))
    await stage.kill(member, "broker")
    return member


async def come_back(stage: Stage, member: Member) -> None:
    """Start a killed broker again under its old name: a new incarnation that inherits nothing."""
    stage.note(f"{member.label} is started again under its old name", "act")
    await stage.start_broker(member)
    stage.note(f"{member.label} is back, as a new incarnation", "good")


async def kill_the_leader(stage: Stage) -> Member:
    """Kill the leader. Another broker takes over the lead, then the bundles."""
    leader = await stage.led_by()
    await stage.kill(leader, "leader")
    return leader


async def drain(stage: Stage) -> None:
    """A follower drains and leaves."""
    leader = await stage.led_by()
    followers = [m for m in stage.up() if m is not leader]
    await stage.retire(max(followers, key=lambda m: len(stage.watch.held_by_name(m.name))))
