"""Hooks that meet: they are sent at the same moment, and come in any order."""

from __future__ import annotations

import asyncio
import itertools

from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.stage import Stage, expect

APART_S = (0.0, 0.0, 0.002, 0.02)
"""The times between two hooks of a meeting."""


@check("acquire-meets-abandon")
async def acquire_meets_abandon(stage: Stage) -> None:
    """An `acquire` and the `abandon` after it, sent at the same moment, leave the bundle not served."""
    for apart_s, reverse in itertools.product(APART_S, (False, True)):
        bundle = stage.new_bundle()
        acquire, _ = stage.acquiring(bundle)
        abandon = stage.hook("abandon", bundle)
        first, second = (abandon, acquire) if reverse else (acquire, abandon)
        sending = asyncio.create_task(stage.send(first, how="at once with the next"))
        await asyncio.sleep(apart_s)
        answers = dict(zip((first.kind, second.kind), await asyncio.gather(sending, stage.send(second)), strict=True))
        expect(answers["abandon"].well, "2xx for the hook abandon", answers["abandon"])
        acquired = answers["acquire"]
        expect(acquired.well or acquired.declined, "2xx or 4xx for the hook acquire", acquired)
        await stage.refuses(stage.key_in(bundle), "its abandon has a higher sequence than its acquire")


@check("release-meets-acquire")
async def release_meets_acquire(stage: Stage) -> None:
    """A `release` sent while the service may still load the bundle leaves the bundle not served."""
    for _ in APART_S:
        bundle = stage.new_bundle()
        acquire, _token = stage.acquiring(bundle)
        release = stage.hook("release", bundle)
        _, released = await asyncio.gather(stage.send(acquire, how="at once with release"), stage.send(release))
        expect(released.well, "2xx for the hook release", released)
        await stage.refuses(stage.key_in(bundle), "its release has a higher sequence than its acquire")
