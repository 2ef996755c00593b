"""How a service finds its sidecar, keeps it, and finds it again."""

from __future__ import annotations

import asyncio

from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.script import UNREAD, Grant
from loadmanager.sidecar.conformance.stage import SLACK_S, Stage, expect, past

AWAY_S = 1.0
"""The time for which the sidecar's port refuses connections, beyond the deadlines."""
CONFLICTS = 2
POLLS = 6
LONG_MS = 3_000
SURELY_S = 1.0
"""So long before its end a lease is surely valid, though clocks of both sides were read apart."""
LIVELY_MS = 20_000
"""A lease that does not run out while a check looks at what else should end the serving."""


@check("attach", starts=True)
async def attach(stage: Stage) -> None:
    """The service attaches with the secret of the file, and names its hooks and where clients reach it."""
    await stage.open()
    await stage.start()
    await stage.until_attached(stage.script.attached, stage.options.start_s)
    attachment = stage.script.attachment
    assert attachment is not None
    expect(bool(attachment.urls), "at least one address in `urls`", dict(attachment.urls))
    expect(not stage.watch.refused_secrets, "the secret with each request", stage.recent_requests)


@check("attach-again", starts=True)
async def attach_again(stage: Stage) -> None:
    """The service tries again to attach: after a reset, while the port refuses, and after 409."""
    await stage.gate.shut()
    await stage.gate.open(None)
    before = stage.gate.resets
    await stage.start()
    deadline_s = asyncio.get_running_loop().time() + stage.options.start_s
    while stage.gate.resets == before:
        expect(stage.runs, "the service tries again after a connection that was reset", stage.how_it_ended)
        expect(asyncio.get_running_loop().time() < deadline_s, "the service connects to the sidecar", "nothing")
        await asyncio.sleep(0.02)
    stage.note("reset its connections")
    await stage.gate.shut()
    stage.note(f"refused connections for {AWAY_S:g} s")
    await asyncio.sleep(AWAY_S)
    refused = stage.script.refused
    stage.script.conflicts = CONFLICTS
    await stage.open()
    attached = stage.script.attached
    stage.note(f"took connections, and answered the first {CONFLICTS} requests to attach with 409, Retry-After: 1")
    await stage.until_attached(attached, 2 * stage.options.patience_s)
    expect(stage.script.refused - refused == CONFLICTS, "one attempt to attach after the other", stage.recent_requests)


@check("one-poll")
async def one_poll(stage: Stage) -> None:
    """The service polls the lease again and again, one request after the other."""
    await stage.taken_in()
    stage.watch.most_polls = 0
    before = len(stage.script.polls)
    known = await stage.script.until(lambda: len(stage.script.polls) >= before + POLLS, stage.options.patience_s)
    expect(known, f"{POLLS} polls", stage.recent_requests)
    expect(stage.watch.most_polls <= 1, "one poll at a time", f"{stage.watch.most_polls} at once")


@check("session-ended")
async def session_ended(stage: Stage) -> None:
    """After 410 the service forgets all bundles, though their lease is valid, and attaches again."""
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.taken_in()
    owned = await stage.serving()
    before = stage.script.attached
    stage.script.end()
    stage.note("answered polls with 410: the session has ended")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()


@check("sidecar-dies")
async def sidecar_dies(stage: Stage) -> None:
    """Without its sidecar the service serves until its deadlines, not longer; later it attaches again."""
    stage.grant(Grant({0: LONG_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    await stage.gate.shut()
    stage.note("closed the sidecar's port, and reset its connections")
    first = await stage.probe(owned.key)
    if first.came_s < stage.script.polls[-UNREAD].arrived_s + LONG_MS / 1000 - SURELY_S:
        expect(first.status == 200, f"status 200 for {owned.key}: its lease is still valid", first)
    await past(stage.script.deadline_s(0) + SLACK_S)
    await stage.refuses(owned.key, "its lease has run out", AWAY_S)
    before = stage.script.attached
    stage.script.forget()
    await stage.open()
    stage.note("opened the sidecar's port; it does not know the old session")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()


@check("new-secret")
async def new_secret(stage: Stage) -> None:
    """When the sidecar restarts with another secret (401), the service forgets all bundles, and reads the file."""
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.taken_in()
    owned = await stage.serving()
    before = stage.script.attached
    await stage.gate.shut()
    stage.script.forget()
    await stage.renew_secret()
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.open()
    stage.note("closed the sidecar's port, and opened it again with a new secret in the file")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()
