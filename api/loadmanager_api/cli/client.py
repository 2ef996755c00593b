"""Calls a broker's REST endpoints, and turns refusals into messages and exit codes."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import click

from loadmanager_api.cli.echoing import one_line
from loadmanager_api.cli.options import Remote

T = TypeVar("T")

TIMEOUT_S = 65.0
"""Longer than an operation may take at the broker (`in_flight_timeout_s`), so that its own answer arrives."""

CONNECT_TIMEOUT_S = 5.0
EXIT_REFUSED = 1
EXIT_UNAVAILABLE = 3


class Failed(click.ClickException):
    """The request was not carried out; the message says why."""

    exit_code = EXIT_REFUSED


class NotNow(Failed):
    """The request was not carried out, or perhaps was; trying again may help."""

    exit_code = EXIT_UNAVAILABLE


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on a loop of its own."""
    return asyncio.run(work)


async def ask(
    remote: Remote,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | None] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The parsed answer (text if it is not JSON, None if it is empty), following redirects. Raises Failed.

    Query parameters that are None are left out. `path` is quoted already.
    """
    import aiohttp  # takes longer to import than many commands take to run
    from yarl import URL

    params = {name: value for name, value in (query or {}).items() if value is not None}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method,
                URL(remote.admin_url + path, encoded=True).update_query(params),
                json=body,
                headers={**(headers or {}), "X-Author": author()},
            ) as answer,
        ):
            return _read(remote, answer.status, await answer.text(errors="replace"), answer.content_type)
    except ValueError:  # aiohttp.InvalidURL is one, and what yarl raises for a port
        raise click.UsageError(f"{remote.admin_url!r} is not a URL; write --admin-url http://host:port") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NotNow(unreachable(remote, error)) from None


def author() -> str:
    """The author for histories: `LOADMANAGER_AUTHOR`, else the user of this machine."""
    try:
        name = os.environ.get("LOADMANAGER_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return name.encode("ascii", "replace").decode()


def _read(remote: Remote, status: int, text: str, kind: str) -> Any:
    try:
        answer = json.loads(text) if kind.endswith("json") and text else text or None
    except ValueError:
        raise Failed(f"{remote.admin_url} is not a broker: its answer is not valid JSON") from None
    if status < 400:
        return answer
    match answer:
        case {"reason": str(reason)}:
            pass
        case str() if "\n" not in answer.strip() and not answer.lstrip().startswith("<"):
            reason = answer
        case _:
            reason = f"{remote.admin_url} is not a broker, or a proxy answered: HTTP {status}"
    raise (NotNow if status == 503 else Failed)(one_line(reason))


def unreachable(remote: Remote, error: BaseException) -> str:
    """Why there was no answer, and what to do."""
    if isinstance(error, TimeoutError):
        return f"{remote.admin_url} did not answer in time"
    cause = getattr(error, "os_error", error)
    why = "" if isinstance(cause, ConnectionRefusedError) else f" ({error})"
    return f"no broker answers at {remote.admin_url}{why}: start one, or name another with --admin-url"
