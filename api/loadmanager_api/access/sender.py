"""Who sends a request: the principal, and the name for histories and the audit log. Values only.

A name is who the sender proved to be; where authentication is not required, whom they name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from loadmanager.errors import NotKnown, Unavailable

PRINCIPAL = "loadmanager.principal"
"""The key in an ASGI scope of the request's `Principal`; missing where there is no authentication."""

CERTIFIED = "loadmanager.certified"
"""The key in an ASGI scope of the `Principal` that the connection's client certificate names, if there is one."""


class Principal(msgspec.Struct, frozen=True):
    """A sender that proved to be `name`. `how`: token or certificate, valid until `until_s` (Unix time)."""

    name: str
    how: str
    until_s: float


class Unauthenticated(NotKnown):
    """The request does not prove who sent it. `why` is one of a few words, for metrics."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class NoKeys(Unavailable):
    """Tokens cannot be verified yet: the issuer has not sent its keys."""

    def __init__(self) -> None:
        super().__init__("this broker has no keys yet with which it could verify tokens; try again or elsewhere")


Clock = Callable[[], float]
"""Unix time in seconds."""


AUTHOR_HEADER = b"x-author"
AUTHOR_CHARACTERS = 200
UNVERIFIED = "unverified"


class Sender(msgspec.Struct, frozen=True):
    """Who sent a request, how that was proven (token, certificate, or not at all), and the address it came from."""

    name: str
    how: str
    address: str

    def or_named(self, said: str) -> str:
        """The author of a request whose body may name one."""
        return said if said and self.how == UNVERIFIED else self.name


def proven_name(scope: Any) -> str:
    """The name of the request's principal; empty where there is no authentication."""
    principal: Principal | None = scope.get(PRINCIPAL)
    return "" if principal is None else principal.name


def sender_of(scope: Any) -> Sender:
    """The sender of the request with this ASGI scope."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    principal: Principal | None = scope.get(PRINCIPAL)
    if principal is not None:
        return Sender(principal.name, principal.how, address)
    said = next((value.decode("latin-1") for name, value in scope["headers"] if name == AUTHOR_HEADER), "")
    shown = "".join(each if each.isprintable() else " " for each in said).strip()[:AUTHOR_CHARACTERS]
    return Sender(shown or (f"somebody at {address}" if address else "somebody"), UNVERIFIED, address)
