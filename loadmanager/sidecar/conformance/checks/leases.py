"""When a service serves, and for how long."""

from __future__ import annotations

import asyncio

from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.script import NOTHING, VALID_MS, Grant, Poll
from loadmanager.sidecar.conformance.stage import SLACK_S, Stage, expect, past

SHORT_MS = 1_000
LATE_S = 0.8
"""The time by which an answer is late. A service that counts from the answer serves so much too long."""
LONG_MS = 20_000


@check("no-lease")
async def no_lease(stage: Stage) -> None:
    """A bundle that was acquired is not served before there is a lease, and is served by the first one."""
    partition = stage.new_partition()
    stage.grant(NOTHING)
    await stage.taken_in()
    owned = await stage.own(partition=partition)
    await stage.refuses(owned.key, "there is no lease")
    stage.grant(Grant({partition: VALID_MS}))
    await stage.serves(owned.key, "there is a lease now")


@check("partitions")
async def partitions(stage: Stage) -> None:
    """A lease for one partition does not let bundles of another one be served."""
    stage.grant(Grant({0: VALID_MS}))
    partition = stage.new_partition()
    here, there = await stage.serving(), await stage.own(partition=partition)
    await stage.refuses(there.key, f"its partition is {partition}, and has no lease")
    await stage.serves(here.key, "partition 0 has a lease")


@check("runs-out")
async def runs_out(stage: Stage) -> None:
    """When polls are not answered the lease runs out; the next answer lets the bundle be served again."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    stage.script.hold()
    stage.note("answered no poll")
    await past(stage.script.deadline_s(0) + SLACK_S)
    await stage.refuses(owned.key, "its lease has run out")
    stage.grant(Grant())
    stage.script.resume()
    stage.note("answered polls again")
    await stage.serves(owned.key, "there is a new lease")


@check("late-answer")
async def late_answer(stage: Stage) -> None:
    """The lease counts from before the question was sent, however late the answer comes."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    poll = await _held(stage)
    await past(poll.arrived_s + LATE_S)
    poll.release(Grant({0: SHORT_MS}))
    stage.note(f"answered a poll {LATE_S:g} s late with {SHORT_MS} ms for partition 0, and no other poll")
    await past(poll.arrived_s + SHORT_MS / 1000)
    await stage.refuses(owned.key, "its lease counts from before the question, and has run out", LATE_S / 2)
    stage.grant(Grant())
    stage.script.resume()
    await stage.serves(owned.key, "there is a new lease")


@check("newest-answer")
async def newest_answer(stage: Stage) -> None:
    """The newest answer counts: what it does not grant must not be served, though an earlier answer did."""
    partition = stage.new_partition()
    stage.grant(Grant({0: LONG_MS, partition: LONG_MS}))
    here, there = await stage.serving(), await stage.serving(partition=partition)
    await stage.taken_in()
    stage.grant(Grant({0: LONG_MS}))
    await stage.taken_in()
    await stage.refuses(there.key, "the newest answer has no lease for its partition")
    await stage.serves(here.key, "the newest answer has a lease for its partition")
    stage.grant(Grant({0: VALID_MS, partition: VALID_MS}))
    await stage.serves(there.key, "there is a lease for its partition again")


@check("abandon-in-lease")
async def abandon_in_lease(stage: Stage) -> None:
    """A lease says which bundles to abandon; the hook with the same sequence may come later, and is answered 2xx."""
    owned, other = await stage.serving(), await stage.serving()
    hook = stage.hook("abandon", owned.bundle)
    stage.grant(Grant(abandon=((owned.bundle, hook.sequence),)))
    await stage.taken_in()
    await stage.refuses(owned.key, "the lease said to abandon its bundle")
    await stage.serves(other.key, "the lease said nothing of its bundle")
    await stage.obeyed(hook, "which the lease named before")
    stage.grant(Grant())
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was abandoned")
    again = await stage.serving(bundle=owned.bundle)
    stage.grant(Grant(abandon=((owned.bundle, hook.sequence),)))
    await stage.taken_in()
    await stage.serves(again.key, "an order with a lower sequence than its acquire changes nothing")


@check("shared")
async def shared(stage: Stage) -> None:
    """Bundles of a namespace that the lease calls shared are served without a deadline, and only while it does."""
    stage.grant(Grant({}, shared=(stage.options.namespace,)))
    owned = await stage.own(partition=stage.new_partition())
    await stage.serves(owned.key, "its namespace is shared")
    stage.grant(NOTHING)
    await stage.taken_in()
    await stage.refuses(owned.key, "its namespace is not shared any more, and there is no lease")


@check("paused")
async def paused(stage: Stage) -> None:
    """A service that was stopped (SIGSTOP) beyond its lease does not serve what came meanwhile."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    stage.script.hold()
    stage.service.pause()
    stage.note("stopped the process, and answered no poll")
    try:
        asking = asyncio.create_task(stage.probe(owned.key))
        await past(stage.script.deadline_s(0) + SLACK_S)
    finally:
        stage.service.go_on()
    answer = await asking
    stage.note("continued it after its lease")
    expect(answer.status != 200, f"another status than 200 for {owned.key}: its lease ran out meanwhile", answer)
    await stage.refuses(owned.key, "its lease has run out")
    stage.grant(Grant())
    stage.script.resume()
    await stage.serves(owned.key, "there is a new lease")


async def _held(stage: Stage) -> Poll:
    """Hold all polls; give one that arrived after that."""
    stage.script.hold()
    before = len(stage.script.polls)
    for poll in stage.script.polls:
        poll.release()
    arrived = await stage.script.until(lambda: len(stage.script.polls) > before, stage.options.patience_s)
    expect(arrived, "the service polls the lease", stage.recent_requests)
    return stage.script.polls[-1]
