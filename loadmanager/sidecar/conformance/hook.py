"""Sends hooks as a sidecar does, and as one must not: forged, old, twice, late."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from loadmanager.sidecar import wire
from loadmanager.sidecar.wire import Secret
from statechannel.law.bundle import Bundle

_AGAIN_S = 0.05


@dataclass(frozen=True)
class Hook:
    """One hook: what is sent again is equal to the first, byte for byte."""

    kind: str
    message_id: str
    sequence: int
    body: bytes

    def __str__(self) -> str:
        return f"{self.kind} with sequence {self.sequence}"


@dataclass(frozen=True)
class Answer:
    """An answer of the service; status 0: there was none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_s: float
    """When the request was sent, in monotonic time; `came_s`: when the whole answer was there."""
    came_s: float

    @property
    def well(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    @property
    def declined(self) -> bool:
        """4xx."""
        return 400 <= self.status < 500

    def json(self) -> Any:
        """The body; None if it is no JSON."""
        with suppress(ValueError):
            return json.loads(self.body)
        return None

    def __str__(self) -> str:
        said = " ".join(self.body[:200].decode(errors="replace").split())
        return f"{self.status} {said}".strip() if self.status else f"no answer ({said})"


def hook_of(kind: str, session: str, sequence: int, bundle: Bundle | None = None, **more: Any) -> Hook:
    """A hook of this kind. `acquire` wants token, partition and hand_off (bytes or None), `release` may have `to`."""
    common = {"session": session, "sequence": sequence}
    if bundle is not None:
        lo, hi = bundle.bounds
        common |= {"bundle": str(bundle), "namespace": bundle.namespace, "lo": lo, "hi": hi}
    data: wire.HookData
    match kind:
        case "acquire":
            handed: bytes | None = more.pop("hand_off", None)
            hand_off = None if handed is None else base64.b64encode(handed).decode()
            data = wire.AcquireHook.model_validate({**common, **more, "hand_off": hand_off})
        case "release":
            data = wire.ReleaseHook.model_validate({**common, "to": more.get("to")})
        case _:
            data = (wire.HookData if bundle is None else wire.BundleHook).model_validate(common)
    body = wire.hook_body(kind, data, datetime.now(UTC))
    return Hook(kind, f"{session}.{sequence}", sequence, body)


async def post(
    http: aiohttp.ClientSession, url: str, hook: Hook, headers: Mapping[str, str], body: bytes, timeout_s: float
) -> Answer:
    """Send it until it is answered by anything but 503; at the end of the time, status 0."""
    sent_s, last = time.monotonic(), b"nothing came"
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    said = {"Content-Type": "application/json", **headers}
                    async with http.post(url, data=body, headers=said, allow_redirects=False) as answer:
                        last = await answer.read()
                        if answer.status != 503:
                            return Answer(answer.status, answer.headers, last, sent_s, time.monotonic())
                except (aiohttp.ClientError, OSError) as error:
                    last = f"{hook.kind}: {type(error).__name__} {error}".encode()
                await asyncio.sleep(_AGAIN_S)
    return Answer(0, {}, last, sent_s, time.monotonic())


def signed(hook: Hook, secret: Secret, at: datetime | None = None) -> dict[str, str]:
    """The headers of a hook that is sent at this time, now by default."""
    return secret.signed(hook.message_id, hook.body, at or datetime.now(UTC))
