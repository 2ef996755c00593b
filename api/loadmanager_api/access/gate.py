"""Lets requests in: `Gate` asks who sends them, before anything is read, and `May` knows what they may do.

Whether a sender may use a route is asked by `loadmanager_api/routing.py`.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from loadmanager.errors import Forbidden
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.access import Access
from loadmanager_api.access.authorship import Sender
from loadmanager_api.access.principal import CERTIFIED, PRINCIPAL, Clock, NoKeys, Unauthenticated
from loadmanager_api.access.rates import Rates, client_of
from loadmanager_api.access.rules import is_open
from loadmanager_api.problems import problem, problem_of, respond

ACCESS = "loadmanager.access"
"""The key in an ASGI scope of the broker's `Access`; missing where there is no authentication."""

SENDER: ContextVar[Sender | None] = ContextVar("loadmanager.sender", default=None)
"""The sender of the present request, if its route may change something: then it is audited."""

CLOSE = {"Connection": "close"}
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="loadmanager"'}


FAILURES_PER_S = 50.0
"""So many requests a second with wrong credentials an address may send; beyond it none of its credentials are verified.
Those that were verified before go on.
"""


class Gate:
    """An ASGI application that gives another one authenticated requests only, with their principal."""

    def __init__(self, app: Any, access: Access, now_s: Clock = time.monotonic) -> None:
        self._app = app
        self._access = access
        self._failures = Rates(FAILURES_PER_S, now_s)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            headers, certified, address = scope["headers"], scope.get(CERTIFIED), client_of(scope)
            known = self._access.known(headers, certified)
            if known is None and not self._failures.has_some(address):
                many = "too many wrong credentials came from your address; try again"
                self._access.refuse("too_many", scope, 429, many)
                await respond(problem(429, many, retry_after_s=1.0), CLOSE)(scope, receive, send)
                return
            try:
                scope[PRINCIPAL] = known or self._access.identify(headers, certified)
            except Unauthenticated as error:
                self._failures.wait_s(address)
                self._access.refuse(error.why, scope, 401, str(error))
                await respond(problem(401, str(error)), CHALLENGE)(scope, receive, send)
                return
            except NoKeys as error:
                self._access.refuse("no_keys", scope, 503, str(error))
                await respond(problem_of(error))(scope, receive, send)
                return
            scope[ACCESS] = self._access
        await self._app(scope, receive, send)


class May:
    """What the sender of a request may do, for endpoints whose body says what it is about."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._access: Access | None = scope.get(ACCESS)

    def has(self, role: AccessRole, namespace: str | None = None) -> bool:
        """Whether they have the role in the namespace (None: in the cluster)."""
        try:
            self.require(role, namespace)
        except Forbidden:
            return False
        return True

    def require(self, role: AccessRole, namespace: str | None) -> None:
        """Raise Forbidden unless they have the role in the namespace (None: in the cluster)."""
        if self._access is not None:
            self._access.require(self._scope[PRINCIPAL], role, namespace or "")
