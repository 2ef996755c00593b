"""Calls a broker's REST endpoints, and turns refusals into messages and exit codes."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import ssl
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from loadmanager.client.redirection import CLUSTER_HEADER, AnotherCluster
from loadmanager.errors import LoadManagerError
from loadmanager_api.cli.printing import echo, one_line
from loadmanager_api.cli.remote import Remote

if TYPE_CHECKING:
    from types import SimpleNamespace

    from aiohttp import ClientSession, TraceConfig
    from yarl import URL

    from loadmanager.client.credentials import Credentials

T = TypeVar("T")
Query = Mapping[str, str | int | float | tuple[str, ...] | None]
"""Parameters of a request by name; a bool is an int here, and a tuple is one parameter for each."""
Params = dict[str, str | tuple[str, ...]]
"""Those that are sent."""

CONNECT_TIMEOUT_S = 5.0
REDIRECTS = 4
"""A drain is the broker's own work, and it may have a new URL; more would be a circle."""

EXIT_REFUSED = 1
EXIT_UNAVAILABLE = 3


class Failed(click.ClickException):
    """The request was not carried out; the message says why. `status` is that of a broker's answer."""

    exit_code = EXIT_REFUSED

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotNow(Failed):
    """The request was not carried out, or perhaps was; trying again may help."""

    exit_code = EXIT_UNAVAILABLE


class NothingSent(Exception):
    """This is a dry run: the request was not sent."""

    def __init__(self, method: str, path: str, query: Params, body: Any) -> None:
        super().__init__(f"{method} {path}")
        self.method = method
        self.path = path
        self.query = query
        self.body = body


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on a loop of its own."""
    return asyncio.run(work)


def given_credentials(remote: Remote) -> Credentials:
    """Those of the context and the environment. Raises Failed."""
    from loadmanager.client.credentials import Credentials

    try:
        return Credentials.of_environment(os.environ if remote.variables is None else remote.variables)
    except LoadManagerError as error:
        raise Failed(str(error)) from None


async def ask(
    remote: Remote,
    method: str,
    path: str,
    *,
    query: Query | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    previews: bool = False,
) -> Any:
    """The parsed answer (text if it is not JSON, None if it is empty), following redirects. Raises Failed.

    Query parameters that are None or False are left out; True is `true`. `path` is quoted already. In a dry run nothing
    but GET is sent, unless the broker itself `previews` what it would do. Raises NothingSent then.
    """
    return (await _asked(remote, method, path, query or {}, body, headers or {}, previews=previews))[0]


async def ask_all(remote: Remote, path: str, query: Query | None = None) -> Any:
    """As `ask` with GET, for a list in pages: the whole list, or the first page with the entries of all."""
    whole, cursor = await _asked(remote, "GET", path, query or {})
    while cursor is not None:
        page, cursor = await _asked(remote, "GET", path, {**(query or {}), "cursor": cursor})
        if isinstance(whole, list):
            whole += page
        else:
            (name,) = (name for name, value in page.items() if isinstance(value, list))
            whole = {**whole, name: whole[name] + page[name], "next": None}
    return whole


async def _asked(
    remote: Remote,
    method: str,
    path: str,
    query: Query,
    body: Any = None,
    headers: Mapping[str, str] = {},
    *,
    previews: bool = False,
) -> tuple[Any, str | None]:
    """The parsed answer, and the cursor of the next page if there is one."""
    params = _params(query)
    if remote.dry_run and method != "GET":
        if not previews:
            raise NothingSent(method, path, params, body)
        params["dry_run"] = "true"
    said = {**headers, "X-Author": author()}
    if method != "GET":
        said["Idempotency-Key"] = uuid4().hex
    await _choose(remote)
    failures: dict[str, BaseException] = {}
    for url in list(remote.admin_urls):
        try:
            answer = await _ask_one(remote, url, method, path, params, body, said)
        except Unanswered as error:
            failures[url] = error.cause  # perhaps it was carried out: then the next broker knows by the key
        else:
            remote.admin_urls.remove(url)
            remote.admin_urls.insert(0, url)
            return answer
    raise not_answered(remote, failures)


def _params(query: Query) -> Params:
    given = {name: value for name, value in query.items() if value is not None and value is not False}
    return {
        name: "true" if value is True else value if isinstance(value, tuple) else str(value)
        for name, value in given.items()
    }


class Unanswered(Exception):
    """No answer came."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _ask_one(
    remote: Remote, admin_url: str, method: str, path: str, params: Params, body: Any, said: dict[str, str]
) -> tuple[Any, str | None]:
    """What this broker answers, or one to which it redirects. Raises Failed, Unanswered."""
    import aiohttp  # takes longer to import than many commands take to run
    from yarl import URL

    timeout = aiohttp.ClientTimeout(total=remote.timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, remote.timeout_s))
    try:
        credentials = given_credentials(remote)
        url = URL(admin_url + path, encoded=True).update_query(params)
        async with credentials.session(timeout=timeout, trace_configs=[_sent_once()]) as session:
            return await _following(remote, session, credentials, method, url, body, said)
    except AnotherCluster as error:
        raise Unanswered(error) from None
    except LoadManagerError as error:  # of the credentials
        raise Failed(str(error)) from None
    except ssl.CertificateError as error:  # a ValueError, too
        raise Failed(distrusted(admin_url, error)) from None
    except ValueError:  # aiohttp.InvalidURL is one, and what yarl raises for a port
        raise click.UsageError(f"{admin_url!r} is not a URL; write --admin-url http://host:port") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unanswered(error) from None


def _sent_once() -> TraceConfig:
    """Keeps aiohttp from sending PUT and DELETE again, by itself, when a connection breaks."""
    import aiohttp

    async def begin(_session: ClientSession, request: SimpleNamespace, _params: object) -> None:
        if hasattr(request, "begun"):
            raise aiohttp.ServerDisconnectedError
        request.begun = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_start.append(begin)
    tracing.on_connection_reuseconn.append(begin)
    return tracing


async def _following(
    remote: Remote,
    session: ClientSession,
    credentials: Credentials,
    method: str,
    url: URL,
    body: Any,
    said: dict[str, str],
) -> tuple[Any, str | None]:
    from yarl import URL

    first = str(url.origin())
    for _ in range(REDIRECTS):
        headers = {**said, **await admin_headers(remote, session, credentials, str(url.origin()))}
        async with session.request(method, url, json=body, headers=headers, allow_redirects=False) as answer:
            keep_to(remote, answer.headers, str(url.origin()))
            if answer.status != 307 or "Location" not in answer.headers:
                text = await answer.text(errors="replace")
                following = answer.links.get("next", {}).get("url")
                cursor = following.query.get("cursor") if isinstance(following, URL) else None
                return _read(first, answer.status, text, answer.content_type), cursor
            url = url.join(URL(answer.headers["Location"], encoded=True))
    raise Failed(f"{first} redirects in a circle")


async def _choose(remote: Remote) -> None:
    """Find out which cluster is meant, of several addresses without a known one. Raises Failed if it is not clear."""
    if len(remote.admin_urls) < 2 or "/" in remote.pinned.cluster:
        return
    from loadmanager.client.cluster import Pin, header_of
    from loadmanager.client.router import Directory

    credentials = given_credentials(remote)
    try:
        async with credentials.session() as session:
            directory = Directory(remote.admin_urls, session, credentials, Pin(remote.pinned.cluster))
            await directory.choose()
    except LoadManagerError as error:
        raise Failed(str(error).partition(": name one")[0] + ": give the addresses of one of them") from None
    except ValueError:  # an address that is none: the request says so
        return
    if directory.pin.cluster is not None and directory.pin.cluster.generation >= 0:
        _remember(remote, header_of(directory.pin.cluster))


async def admin_headers(remote: Remote, session: ClientSession, credentials: Credentials, url: str) -> dict[str, str]:
    """The headers for a request to this broker: cluster and credentials.

    Before credentials are sent, the broker names its cluster without them, on the same connection as a rule. Raises
    AnotherCluster, also if it names none, Forbidden, and the errors of a request.
    """
    from loadmanager.client.cluster import WHO, Pin, header_of

    ours = {CLUSTER_HEADER: remote.pinned.cluster} if remote.pinned.cluster else {}
    shown = credentials.headers(url)
    if shown:
        async with session.get(url + WHO, headers=ours, allow_redirects=False) as answer:
            _remember(remote, header_of(Pin(remote.pinned.cluster).named(answer.headers, url)))
    return {**ours, **shown}


def keep_to(remote: Remote, headers: Mapping[str, str], url: str) -> None:
    """Check that an answer is of the cluster that is meant, and remember that one. Raises AnotherCluster."""
    from loadmanager.client.cluster import Pin, header_of

    cluster = Pin(remote.pinned.cluster).check(headers, url)
    if cluster is not None:
        _remember(remote, header_of(cluster))


def _remember(remote: Remote, cluster: str) -> None:
    """It is the cluster of these commands, and of their context."""
    pinned = remote.pinned
    if cluster == pinned.cluster:
        return
    before, pinned.cluster = pinned.cluster, cluster
    try:
        pinned.keep(before, cluster)
    except Failed as error:
        echo(f"context {pinned.context} cannot remember its cluster {cluster}: {error.message}", err=True)


def author() -> str:
    """The author for histories: `LOADMANAGER_AUTHOR`, else the user of this machine."""
    try:
        name = os.environ.get("LOADMANAGER_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return name.encode("ascii", "replace").decode()


def _read(admin_url: str, status: int, text: str, kind: str) -> Any:
    try:
        answer = json.loads(text) if kind.endswith("json") and text else text or None
    except ValueError:
        raise Failed(f"{admin_url} is not a broker: its answer is not valid JSON") from None
    if status < 400:
        return answer
    match answer:
        case {"reason": str(reason)}:
            pass
        case str() if "\n" not in answer.strip() and not answer.lstrip().startswith("<"):
            reason = answer
        case _:
            reason = f"{admin_url} is not a broker, or a proxy answered: HTTP {status}"
    raise (NotNow if status == 503 else Failed)(one_line(reason), status)


def distrusted(admin_url: str, error: ssl.CertificateError) -> str:
    """Why the broker's certificate is not accepted, and what to do."""
    why = getattr(getattr(error, "certificate_error", error), "verify_message", "") or "it is not trusted"
    return (
        f"the certificate of {admin_url} is refused: {why}. Name the authorities that signed it in "
        "LOADMANAGER_CA (a PEM file) or in the context, or use the name that it was issued for"
    )


def not_answered(remote: Remote, failures: Mapping[str, BaseException]) -> Failed:
    """The error of a request that no broker of the cluster answered."""
    another = next((error for error in failures.values() if isinstance(error, AnotherCluster) and error.cluster), None)
    if another is None:
        return NotNow(unreachable(failures))
    name, cluster = remote.pinned.context, another.cluster
    again = f". If that is the cluster you mean: loadmanager context set {name} --cluster '{cluster}'" if name else ""
    return Failed(f"{another}{again}", 421)


def unreachable(failures: Mapping[str, BaseException]) -> str:
    """Why there was no answer of these URLs, and what to do."""
    late = [url for url, error in failures.items() if isinstance(error, TimeoutError)]
    if late:
        return f"{late[-1]} did not answer in time"
    told: list[str] = []
    for url, error in failures.items():
        cause = getattr(error, "os_error", error)
        told.append(url if isinstance(cause, ConnectionRefusedError) else f"{url} ({error})")
    return f"no broker answers at {', nor at '.join(told)}: start one, or name another with --admin-url"
