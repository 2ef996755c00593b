"""Who sent a request, for histories and the audit log: who they proved to be; where nobody has to, whom they name."""

from __future__ import annotations

from typing import Any

import msgspec

from loadmanager_api.access.principal import PRINCIPAL, Principal

AUTHOR_HEADER = b"x-author"
AUTHOR_CHARACTERS = 200
UNVERIFIED = "unverified"


class Sender(msgspec.Struct, frozen=True):
    """Who sent a request, how that was proven (token, certificate, or not at all), and the address it came from."""

    name: str
    how: str
    address: str

    def or_named(self, said: str) -> str:
        """The author of a body that may name somebody itself."""
        return said if said and self.how == UNVERIFIED else self.name


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
