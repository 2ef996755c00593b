"""Who may use one broker's endpoints: credentials, roles, what is refused.

`Gate` asks who sends a request, before anything is read, and `May` knows what they may do. Whether a sender may use a
route is asked by `loadmanager_api/routing.py`. All of it belongs to the endpoints' loop, except `grant`, which the
control loop calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from loadmanager.errors import Forbidden
from loadmanager.model.policies.model import AccessPolicy, AccessRole, Policies
from loadmanager.settings import Settings
from loadmanager_api.access.grants import Grants
from loadmanager_api.access.rates import Rates, client_of
from loadmanager_api.access.rules import Rule, Scope, is_open, namespace_of
from loadmanager_api.access.sender import (
    CERTIFIED,
    PRINCIPAL,
    Clock,
    NoKeys,
    Principal,
    Sender,
    Unauthenticated,
    sender_of,
)
from loadmanager_api.problems import problem, problem_of, respond

if TYPE_CHECKING:
    from loadmanager_api.access.tokens import Tokens

REMEMBERED = 4_096
"""Tokens whose verification is remembered while they are valid; beyond it all are verified again. The key is a hash of
the token alone, so neither its length nor blanks before it take memory."""

LOOK_S = 1.0

_BEARER = b"bearer "

Headers = Sequence[tuple[bytes, bytes]]
Tell = Callable[[Sender, str, str, int, str], None]
"""Gets the sender of a refused request, its method and path, the status and the detail of the answer."""


class Access:
    """The access to one broker whose settings ask for authentication."""

    def __init__(self, settings: Settings, now_s: Clock = time.time) -> None:
        """Raises Invalid if the keys of tokens cannot be read."""
        self._superusers = settings.superuser_names
        self._tokens: Tokens | None = None
        if settings.takes_tokens:
            from loadmanager_api.access.tokens import Tokens  # and cryptography, which few need

            self._tokens = Tokens(settings, now_s)
        self._now_s = now_s
        self._verified: dict[bytes, Principal] = {}
        """By the hash of the token."""
        self.grants = Grants((), self._superusers)
        self._granted: Mapping[str, AccessPolicy] = {}
        self.refused: dict[str, int] = {}
        """Refused requests by reason."""
        self.tell: Tell = _nobody
        """Is called with each refused request."""

    def grant(self, policies: Policies) -> None:
        """Take the roles from these policies. Is called at each change of any policy."""
        if policies.access != self._granted:
            self._granted = policies.access
            self.grants = Grants(policies.access.values(), self._superusers, self.grants)

    async def keep_current(self) -> None:
        """Read the keys of tokens again when they change, until cancelled."""
        while self._tokens is not None:
            work = self._tokens.look
            if await asyncio.to_thread(work) if self._tokens.remote else work():
                self._verified.clear()
            await asyncio.sleep(LOOK_S)

    # --- who

    def check_ready(self) -> None:
        """Raise NoKeys if tokens can't be verified yet."""
        if self._tokens is not None and not self._tokens.ready:
            raise NoKeys

    def identify(self, headers: Headers, certified: Principal | None) -> Principal:
        """Who sends a request: a token counts before the certificate of the connection.

        Raises Unauthenticated, NoKeys.
        """
        given = [value for name, value in headers if name == b"authorization"]
        if given:
            return self._bearer(given)
        if certified is None:
            raise Unauthenticated("missing", f"say who you are: this broker wants {self._wanted}")
        if certified.until_s <= self._now_s():
            raise Unauthenticated("expired", "the client certificate of this connection has expired: connect again")
        return certified

    def known(self, headers: Headers, certified: Principal | None) -> Principal | None:
        """As `identify`, if that takes no verification; else None."""
        header = None
        for name, value in headers:
            if name == b"authorization":
                if header is not None:
                    return None
                header = value
        if header is None:
            found = certified
        else:
            token = _token(header)
            found = None if token is None else self._verified.get(blake2b(token).digest())
        return None if found is None or found.until_s <= self._now_s() else found

    @property
    def _wanted(self) -> str:
        token = "a bearer token in the header Authorization"
        return token if self._tokens is not None else "a client certificate"

    def _bearer(self, given: Sequence[bytes]) -> Principal:
        if len(given) > 1:
            raise Unauthenticated("malformed", "there is more than one Authorization header")
        if self._tokens is None:
            raise Unauthenticated("method", "this broker takes client certificates, no tokens")
        token = _token(given[0])
        if token is None:
            raise Unauthenticated(
                "method", "the header Authorization has another method than Bearer; only tokens are taken there"
            )
        name = blake2b(token).digest()
        found = self._verified.get(name)
        if found is not None:
            if found.until_s > self._now_s():
                return found
            del self._verified[name]
        found = self._tokens.verify(token.decode("ascii", "replace"))
        if len(self._verified) >= REMEMBERED:
            self._verified.clear()
        self._verified[name] = found
        return found

    # --- may they

    def check(self, principal: Principal, rule: Rule, path: Mapping[str, Any], query: Mapping[str, str]) -> None:
        """Raise Forbidden unless the principal may send a request with these parameters of its path and query.

        For the scope BODY it checks that it has the role somewhere; the endpoint calls `require`, with what it read.
        """
        scope, place, role = rule.scope, "", rule.role
        match scope:
            case Scope.OPEN:
                return
            case Scope.NAMESPACE:
                place = f"{path['tenant']}/{path['namespace']}"
            case Scope.QUERY:
                place = query.get("namespace", "")
            case Scope.DOCUMENT:
                place = namespace_of(path["kind"], path["name"]) or ""
            case _:
                pass
        if _is_yes(query.get("force", "")):  # it overrides rules that others made, for the whole cluster
            self.require(principal, role, "")
        elif scope is Scope.TENANT:
            if not self.grants.in_tenant(principal.name, role, path["tenant"]):
                raise _forbidden(principal, role, f"all namespaces of {path['tenant']}")
        elif scope in (Scope.ANYWHERE, Scope.BODY):
            if not self.grants.anywhere(principal.name, role):
                raise _forbidden(principal, role, "any namespace")
        else:
            self.require(principal, role, place)

    def require(self, principal: Principal, role: AccessRole, namespace: str) -> None:
        """Raise Forbidden unless the principal has the role in the namespace; in the cluster, if that is empty."""
        if namespace:
            if not self.grants.in_namespace(principal.name, role, namespace):
                raise _forbidden(principal, role, namespace)
        elif not self.grants.in_cluster(principal.name, role):
            raise _forbidden(principal, role, "the cluster")

    def refuse(self, why: str, scope: Any, status: int, detail: str) -> None:
        """Count a refused request, and tell the listeners."""
        self.refused[why] = self.refused.get(why, 0) + 1
        self.tell(sender_of(scope), scope["method"], scope["path"], status, detail)


def _token(header: bytes) -> bytes | None:
    """The token in a header Authorization; None if it has another method."""
    return header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else None


def _nobody(*_: object) -> None:
    pass


def _is_yes(text: str) -> bool:
    return text.lower() not in ("", "false", "0", "no", "off", "f", "n")


def _forbidden(principal: Principal, role: AccessRole, where: str) -> Forbidden:
    return Forbidden(f"{principal.name} is not {role} in {where}: an access policy would have to say so")


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
