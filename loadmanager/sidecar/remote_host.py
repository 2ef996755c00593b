"""The `BundleHost` of a session: each hook is a signed POST to the service, tried again until it is answered.

The time-out of a hook is its caller's. The service's answer tells whether it obeyed; `leases.py` decides what follows
from an answer that does not come. All of it runs on the loop that serves the sidecar's endpoints.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import aiohttp
import msgspec
from pydantic import BaseModel, ValidationError

from loadmanager.model.host import BundleLoad, Destination, KeyRate
from loadmanager.sidecar import wire
from loadmanager.sidecar.leases import Leases
from loadmanager.sidecar.wire import Offer, Secret
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.25
HOOKS_AT_ONCE = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024

A = TypeVar("A", bound=BaseModel)
H = TypeVar("H", bound=wire.HookData)


class Refused(Exception):
    """The service did not do what a hook asked for; the message quotes its answer."""


class Over(Exception):
    """The session has ended, and no hook is sent any more."""


class RemoteHost:
    """The hooks of one session. `end()` when the service is gone: later calls send nothing."""

    def __init__(
        self,
        session: str,
        hooks_url: str,
        offers: frozenset[Offer],
        secret: Secret,
        http: aiohttp.ClientSession,
        clock_s: Callable[[], float],
    ) -> None:
        self.leases = Leases()
        self._session = session
        self._url = hooks_url
        self._offers = offers
        self._secret = secret
        self._http = http
        self._clock_s = clock_s
        self._over = False
        self._news: dict[Bundle, asyncio.Event] = {}
        """For each bundle that is waited for: set when the service obeyed, or the session ended."""
        if Offer.POSITIONS in offers:
            self.positions = self._positions
        if Offer.RATES in offers:
            self.rates = self._rates

    def end(self) -> None:
        """The service is gone, or has been told that its session is over."""
        self._over = True
        for bundle in self.leases.held():
            self.leases.abandoning(bundle)
        for news in self._news.values():
            news.set()

    # --- the hooks

    async def prepare(self, bundle: Bundle) -> None:
        """Raises Refused, Over."""
        if Offer.PREPARE in self._offers:
            await self._send("prepare", self._about(wire.BundleHook, bundle, self.leases.next()))

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """Raises Refused, Over. A service that declines holds nothing."""
        sequence = self.leases.acquiring(bundle, token.partition)
        handed = None if hand_off is None else base64.b64encode(hand_off).decode()
        more = {"token": str(token), "partition": token.partition, "hand_off": handed}
        try:
            await self._send("acquire", self._about(wire.AcquireHook, bundle, sequence, **more))
        except Refused:
            self._obeyed(bundle, sequence)
            raise

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        """Raises Refused. Without a service there is nothing to release, and no hand-off."""
        if self._over:
            return None
        sequence = self.leases.releasing(bundle)
        there = None if to is None else wire.To(broker=to.broker, urls=dict(to.urls))
        try:
            answer = await self._asked(
                "release", self._about(wire.ReleaseHook, bundle, sequence, to=there), wire.HandOff
            )
            handed = None if answer.hand_off is None else base64.b64decode(answer.hand_off, validate=True)
        except Over:
            return None
        except binascii.Error:
            raise Refused("release was answered with a hand_off that is not base64") from None
        self._obeyed(bundle, sequence)
        return handed

    async def abandon(self, bundle: Bundle) -> None:
        """Raises Refused. Grants say it too, until it is answered."""
        sequence = self.leases.abandoning(bundle)
        with suppress(Over):
            await self._send("abandon", self._about(wire.BundleHook, bundle, sequence))
            self._obeyed(bundle, sequence)

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        """Raises Refused. A service that does not tell has bundles without load."""
        if Offer.LOAD not in self._offers:
            return dict.fromkeys(self.leases.held(), BundleLoad())
        data = wire.HookData(session=self._session, sequence=self.leases.next())
        try:
            answer = await self._asked("load", data, wire.Loads)
        except Over:
            return {}
        try:
            return dict(_load(each) for each in answer.loads)
        except (msgspec.ValidationError, InvalidName, KeyError) as error:
            raise Refused(f"the answer to load is not valid: {error}") from None

    async def _positions(self, bundle: Bundle) -> list[int]:
        data = self._about(wire.BundleHook, bundle, self.leases.next())
        return (await self._asked("positions", data, wire.Positions)).positions

    async def _rates(self, bundle: Bundle) -> list[KeyRate]:
        data = self._about(wire.BundleHook, bundle, self.leases.next())
        return [KeyRate(*each) for each in (await self._asked("rates", data, wire.Rates)).rates]

    async def vacated(self, bundle: Bundle) -> None:
        """Return when the service cannot serve the bundle any more (see `loadmanager.model.host.ServesElsewhere`)."""
        if self.leases.vacant_at_s(bundle) is None:
            self.leases.abandoning(bundle)
        while (left_s := (self.leases.vacant_at_s(bundle) or 0.0) - self._clock_s()) > 0:
            news = self._news.setdefault(bundle, asyncio.Event())
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await news.wait()
        self._news.pop(bundle, None)

    def _obeyed(self, bundle: Bundle, sequence: int) -> None:
        self.leases.obeyed(bundle, sequence)
        if (news := self._news.get(bundle)) is not None:
            news.set()

    # --- sending

    def _about(self, shape: type[H], bundle: Bundle, sequence: int, **more: Any) -> H:
        lo, hi = bundle.bounds
        where = {"bundle": str(bundle), "namespace": bundle.namespace, "lo": lo, "hi": hi}
        return shape(session=self._session, sequence=sequence, **where, **more)

    async def _asked(self, kind: str, data: wire.HookData, shape: type[A]) -> A:
        answer = await self._send(kind, data)
        try:
            return shape.model_validate_json(answer or b"{}")
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise Refused(
                f"{kind} got an answer that is not a valid {shape.__name__}: {where} {wrong['msg']}"
            ) from None

    async def _send(self, kind: str, data: wire.HookData) -> bytes:
        """The body of the first answer that counts. Raises Refused, Over."""
        body, message_id = wire.hook_body(kind, data, datetime.now(UTC)), f"{self._session}.{data.sequence}"
        pause_s = FIRST_PAUSE_S
        while not self._over:
            try:
                return await self._once(kind, message_id, body)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise Over(f"the service's session has ended: no {kind}")

    async def _once(self, kind: str, message_id: str, body: bytes) -> bytes:
        """Raises Refused; ClientError, OSError if it should be tried again."""
        headers = {"Content-Type": "application/json", **self._secret.signed(message_id, body, datetime.now(UTC))}
        async with self._http.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
            if answer.status == 503:
                raise aiohttp.ClientError("the service asks to try again")
            told = await _whole(answer)
            if 200 <= answer.status < 300:
                return told
            says = " ".join(told[:200].decode(errors="replace").split())
            raise Refused(f"{kind} was answered {answer.status}: {says}")


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """The body. Raises Refused if it is too long."""
    parts, size = list[bytes](), 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise Refused(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _load(told: dict[str, Any]) -> tuple[Bundle, BundleLoad]:
    """Raises KeyError, InvalidName, ValidationError."""
    return Bundle.parse(str(told.pop("bundle"))), msgspec.convert(told, BundleLoad)
