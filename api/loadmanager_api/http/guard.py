"""Protects a broker from requests that web pages make through a user's browser.

Requests must name the broker by one of its own names, and a page of another origin may change nothing. Being reachable
from a user's browser must not suffice, whether or not clients have to authenticate.

A browser sends true `Host`, `Origin` and `Sec-Fetch-Site`, whatever the page wants. A foreign name in `Host` is a sign
of DNS rebinding; an address in `Host` cannot be rebound. Other clients do not send the last two headers, and are not
affected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from loadmanager.client.cluster import check_request
from loadmanager.client.redirection import CLUSTER_HEADER, AnotherCluster
from loadmanager.settings import Settings
from loadmanager_api.access.access import CLOSE, Access, Headers
from loadmanager_api.http.connections import RESERVED
from loadmanager_api.http.probes import CHECKS
from loadmanager_api.problems import Problem, problem, respond
from statechannel.law.partition import ClusterIdentity

VITAL = {*CHECKS, "/metrics"}
"""Paths that are answered even where the limit of connections or requests is reached."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
ATTEMPTS = {403: "origin", 415: "form", 421: "host"}
"""What a page makes a browser send is refused with these statuses, and counted under these reasons."""
OWN_SITES = frozenset({b"same-origin", b"none"})
HOSTS_KEPT = 1_024
HOST_BYTES = 512
"""No name is so long with its port, nor is an address."""

NOT_ENCODED = (
    "the path and the query are percent-encoded UTF-8; this is not: write each byte beyond ASCII, and `%` itself, as "
    "`%` and two hexadecimal digits"
)

CLUSTER = CLUSTER_HEADER.lower().encode()
ANOTHER = "Another cluster"


class Names:
    """The names by which clients may call one broker, with any port, because ports are forwarded; and its cluster."""

    def __init__(
        self, settings: Settings, bind: str = "", cluster: Callable[[], ClusterIdentity | None] = lambda: None
    ) -> None:
        self._cluster = cluster
        addresses = (each.rpartition(":")[0] for each in (settings.advertised, bind))
        further = (each.strip() for each in settings.http_hosts.split(","))
        self._names = {_name(each) for each in ("localhost", *addresses, *further) if each}
        self._known: dict[bytes, bool] = {}

    def know(self, host: bytes) -> bool:
        """Whether this `Host` is one of them, or an address."""
        if len(host) > HOST_BYTES:
            return False
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= HOSTS_KEPT:
                self._known.clear()
            known = self._known[host] = self._look_up(host)
        return known

    def another_cluster(self, headers: Headers) -> str:
        """Why a request with these headers is not for this broker's cluster; "" if it is, or does not say."""
        for value in _values(headers, CLUSTER):
            try:
                check_request(self._cluster(), value.decode("latin-1"))
            except AnotherCluster as error:
                return str(error)
        return ""

    def _look_up(self, host: bytes) -> bool:
        try:
            name = _name(_without_port(host.decode("ascii")))
        except UnicodeDecodeError:
            return False
        return name in self._names or _is_address(name)


class Guard:
    """An ASGI application that guards another one. With `access`, attempts to change something are told to it."""

    def __init__(self, app: Any, names: Names, access: Access | None = None) -> None:
        self._app = app
        self._names = names
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = self._refusal(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
        else:
            by_page = found.status in ATTEMPTS and found.title != ANOTHER
            if self._access is not None and by_page and scope["method"] not in READING:
                self._access.refuse(ATTEMPTS[found.status], scope, found.status, found.detail)
            await respond(found, CLOSE)(scope, receive, send)

    def _refusal(self, scope: Any) -> Problem | None:
        if scope.get(RESERVED) and scope["path"] not in VITAL:
            return problem(503, "all connections of this broker are taken; try again", retry_after_s=1.0)
        if not (is_encoded(scope.get("raw_path") or b"") and is_encoded(scope["query_string"])):
            return problem(400, NOT_ENCODED)
        headers: Headers = scope["headers"]
        if another := self._names.another_cluster(headers):
            return problem(421, another, title=ANOTHER)
        return self._stranger(headers, scope["http_version"]) or (
            None if scope["method"] in READING else _foreign(headers) or _no_json(headers)
        )

    def _stranger(self, headers: Headers, version: str) -> Problem | None:
        hosts = _values(headers, b"host")
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return problem(400, "a request of HTTP/1.1 has one Host header")
        if not hosts or self._names.know(hosts[0]):
            return None
        return problem(
            421,
            f"this broker is not known as {_shown(hosts[0])}: use the name that it advertises, or its address, or have "
            "it started with that name among `http_hosts`",
        )


class ProbesAlone:
    """An ASGI application that lets requests of probes through to another one, and nothing else."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in CHECKS and scope["method"] in READING:
            await self._app(scope, receive, send)
        else:
            await respond(problem(404, "this port answers probes alone; ask at the admin port"), CLOSE)(
                scope, receive, send
            )


def is_encoded(text: bytes) -> bool:
    """Whether a path or a query is percent-encoded UTF-8: else several spellings would be read as the same name."""
    if b"%" not in text:
        return text.isascii()
    decoded = unquote_to_bytes(text)  # leaves each `%` without two hexadecimal digits
    if not text.isascii() or len(text) - len(decoded) != 2 * text.count(b"%"):
        return False
    try:
        decoded.decode()
    except UnicodeDecodeError:
        return False
    return True


def _foreign(headers: Headers) -> Problem | None:
    """Refuses a change by a page of another origin."""
    sites, origins = _values(headers, b"sec-fetch-site"), _values(headers, b"origin")
    host = next(iter(_values(headers, b"host")), b"")
    for origin in origins:
        if origin.partition(b"://")[2].lower() != host.lower() or not host:
            return problem(403, f"{_shown(origin)} is another origin than this broker's; {_INSTEAD}")
    if any(site not in OWN_SITES for site in sites):
        return problem(403, f"a page of another site may change nothing here; {_INSTEAD}")
    return None


_INSTEAD = "use the command line or another client that is not a browser, or a page that this broker serves"


def _no_json(headers: Headers) -> Problem | None:
    """Refuses a body that is not JSON: browsers send forms without asking first whether they may."""
    kinds = _values(headers, b"content-type")
    if not has_body(headers) or (len(kinds) == 1 and _is_json(kinds[0])):
        return None
    given = f"not {_shown(kinds[0])}" if kinds else "it says nothing"
    return problem(415, f"send the body with Content-Type: application/json ({given})")


def _is_json(kind: bytes) -> bool:
    essence = kind.partition(b";")[0].strip().lower()
    return essence == b"application/json" or (essence.startswith(b"application/") and essence.endswith(b"+json"))


def has_body(headers: Headers) -> bool:
    """Whether a body comes with these headers."""
    lengths = _values(headers, b"content-length")
    return bool(_values(headers, b"transfer-encoding")) or any(length.strip(b"0") for length in lengths)


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in headers if each == name]


def _without_port(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _name(host: str) -> str:
    """The name for comparison: an IPv6 address without brackets, a name without a trailing dot."""
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("ascii", "replace"))
