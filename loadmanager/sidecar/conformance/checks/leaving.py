"""How a service stops."""

from __future__ import annotations

import asyncio

from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.stage import Stage, expect

HANGS_S = 1.0
"""The time for which bundles are still moving away after the service asked to leave."""
EXIT_S = 10.0


@check("leave", stops=True)
async def leave(stage: Stage) -> None:
    """After SIGTERM the service ends its session, serves until that is answered, and exits with 0 within 10 s."""
    released, kept = await stage.serving(), await stage.serving()
    stage.service.ask_to_stop()
    stage.note("sent SIGTERM to the command")
    asked = await stage.script.until(stage.script.leaving.is_set, stage.options.patience_s)
    expect(asked, "DELETE of the session", f"{stage.recent_requests}; {stage.how_it_ended}")
    stage.note(f"left the DELETE of the session unanswered for {HANGS_S:g} s")
    await asyncio.sleep(HANGS_S)
    await stage.taken_in()
    await stage.serves(kept.key, "the session lasts until its DELETE is answered")
    await stage.obeyed(stage.hook("release", released.bundle), "before the DELETE was answered")
    await stage.refuses(released.key, "its bundle was released")
    await stage.serves(kept.key, "the session lasts until its DELETE is answered")
    await stage.obeyed(stage.hook("release", kept.bundle), "before the DELETE was answered")
    stage.script.may_leave.set()
    stage.note("answered the DELETE with 200")
    expect(await stage.service.exited(EXIT_S), f"the process exits within {EXIT_S:g} s", stage.how_it_ended)
    expect(stage.service.exit_code == 0, "the process exits with 0", stage.how_it_ended)
