"""Limits each client's requests with a token bucket, by principal, or by address where there is no authentication.

Belongs to the endpoints' loop.
"""

from __future__ import annotations

from typing import Any

from loadmanager_api.access.rules import is_open
from loadmanager_api.access.sender import UNVERIFIED, Clock, sender_of
from loadmanager_api.problems import problem, respond

CLIENTS_KEPT = 10_000
"""Above this number of clients all buckets are dropped, and each client starts again with a full one."""

BURST_S = 2.0
"""A bucket holds what is allowed in this time."""

ONE = 1.0 - 1e-6
"""What a request takes, as far as sums of fractions are exact."""

LOOKUPS = ("/lookup/", "/v1/lookup")


class Rates:
    """The buckets of all clients for one kind of request. `per_s`: requests a second."""

    def __init__(self, per_s: float, now_s: Clock) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}
        """By client: what was left in the bucket, and when."""

    def wait_s(self, client: str) -> float:
        """0, and one request less for the client; or for how many seconds it has none, and nothing is taken."""
        left = self._now(client)
        if left < ONE:
            return (1.0 - left) / self._per_s
        if len(self._left) >= CLIENTS_KEPT and client not in self._left:
            self._left.clear()
        self._left[client] = (left - 1.0, self._now_s())
        return 0.0

    def has_some(self, client: str) -> bool:
        """Whether the client may send a request now; takes nothing."""
        return self._now(client) >= ONE

    def _now(self, client: str) -> float:
        left, at_s = self._left.get(client, (self._most, 0.0))
        return min(self._most, left + (self._now_s() - at_s) * self._per_s)


class Throttle:
    """An ASGI application that tells clients beyond their rate to come back; lookups have buckets of their own."""

    def __init__(self, app: Any, lookups: Rates | None, others: Rates | None) -> None:
        self._app = app
        self._lookups = lookups
        self._others = others

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            rates = self._lookups if scope["path"].startswith(LOOKUPS) else self._others
            client = client_of(scope)
            wait_s = 0.0 if rates is None else rates.wait_s(client)
            if wait_s:
                found = problem(429, f"{client} sends more requests than it may; send fewer", retry_after_s=wait_s)
                await respond(found)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def client_of(scope: Any) -> str:
    """Whose bucket counts: the principal's, else the address's, whatever name the request gives."""
    sender = sender_of(scope)
    return sender.address if sender.how == UNVERIFIED else sender.name


LOOKUPS_FOR_A_REQUEST = 10
"""A client may look up this many times as often as it may ask for something else, which costs far more."""
