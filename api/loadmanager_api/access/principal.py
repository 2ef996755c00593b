"""Who sends a request. Values only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadmanager.errors import NotKnown, Unavailable

PRINCIPAL = "loadmanager.principal"
"""The key in an ASGI scope of the request's `Principal`; missing where there is no authentication."""

CERTIFIED = "loadmanager.certified"
"""The key in an ASGI scope of the `Principal` that the connection's client certificate names, if there is one."""


class Principal(msgspec.Struct, frozen=True):
    """Somebody who proved to be `name`. `how`: token or certificate; it is good until `until_s` (Unix time)."""

    name: str
    how: str
    until_s: float


class Unauthenticated(NotKnown):
    """Nobody, as far as the request shows. `why` is one of a few words, for metrics."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class NoKeys(Unavailable):
    """Tokens cannot be verified yet: the issuer has not sent its keys."""

    def __init__(self) -> None:
        super().__init__("this broker has no keys yet with which it could verify tokens; try again or elsewhere")


Clock = Callable[[], float]
"""Unix time in seconds."""
