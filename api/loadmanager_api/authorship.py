"""The author of a change, for histories. Nobody verifies it: there is no authentication yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

AUTHOR_HEADER = "X-Author"
AUTHOR_CHARACTERS = 200


async def _author(request: Request, said: Annotated[str, Header(alias=AUTHOR_HEADER)] = "") -> str:
    shown = "".join(each if each.isprintable() else " " for each in said).strip()[:AUTHOR_CHARACTERS]
    if shown:
        return shown
    return f"somebody at {request.client.host}" if request.client else "somebody"


Author = Annotated[str, Depends(_author)]
"""The header `X-Author`, else the client's address."""
