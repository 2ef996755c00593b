"""`--dry-run` where a broker has no preview of its own: checks with GET what can be checked, and shows the request."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from loadmanager_api.cli.client import Failed, NothingSent, Params, ask, run
from loadmanager_api.cli.printing import echo, show_answer
from loadmanager_api.cli.remote import Remote

_RANGE = r"0x[0-9a-f]{8}_0x[0-9a-f]{8}"
_NEEDED = (
    (re.compile(rf"/v1/bundles/([^/]+/[^/]+/{_RANGE})(/\w+)?"), "/v1/bundles/{}"),
    (re.compile(rf"/admin/v2/namespaces/([^/]+/[^/]+/{_RANGE})/\w+"), "/v1/bundles/{}"),
    (re.compile(r"/v1/bundles/([^/]+/[^/]+)/(?:LARGEST|HOT)/split"), "/admin/v2/namespaces/{}/bundles"),
    (re.compile(r"/admin/v2/namespaces/([^/]+/[^/]+)(?:/\w+)?"), "/admin/v2/namespaces/{}/bundles"),
    (re.compile(r"/admin/v2/(?:non-)?persistent/([^/]+/[^/]+)/[^/]+(?:/\w+)?"), "/admin/v2/namespaces/{}/bundles"),
    (re.compile(r"/v1/brokers/([^/]+)/drain"), "/v1/brokers/{}"),
    (re.compile(r"/v1/plans/([^/]+)/\w+"), "/v1/plans/{}"),
    (re.compile(r"(/v1/groups/[^/]+/[^/]+/[^/]+)/rebalance"), "{}"),
    (re.compile(r"(/v1/config/[^/]+)"), "{}"),
    (re.compile(r"/admin/v2/brokers/configuration/([^/]+)(?:/.*)?"), "/v1/config/{}"),
)
"""Path of a request that changes something, and of what has to be there for it."""

_OF_ITSELF = re.compile(
    r"/v1/channel/readers/[^/]+|/admin/v2/tenants/[^/]+|/admin/v2/clusters/[^/]+/(?:namespaceIsolationPolicies|failureDomains)/.*"
)
"""Documents: they have to be there to be deleted."""

_CREATES = re.compile(r"/admin/v2/namespaces/[^/]+/[^/]+")


@contextmanager
def rehearsed(remote: Remote) -> Generator[None]:
    """Within it, a request that a dry run does not send is checked and shown; it ends the block. Raises Failed."""
    try:
        yield
    except NothingSent as unsent:
        run(rehearse(remote, unsent.method, unsent.path, unsent.query, unsent.body))


async def rehearse(remote: Remote, method: str, path: str, query: Params, body: Any) -> None:
    """Check what can be checked, and show the request that is not sent. Raises Failed, NotNow."""
    checked: list[str] = []
    for needed in needs(method, path, query, body):
        found = await ask(remote, "GET", needed)
        checked.append(needed)
        _check_allowed(path, needed, found)
    if method == "PUT" and _CREATES.fullmatch(path):
        await _check_absent(remote, path)
        checked.append(path)
    url = remote.admin_url + path + (f"?{urlencode(query, doseq=True)}" if query else "")
    request = {"method": method, "url": url, "body": body}
    if not remote.for_people:
        show_answer(remote, {"dry_run": True, "request": request, "checked": checked})
        return
    echo(f"nothing was sent; without --dry-run this would be sent:\n{method} {url}")
    if body is not None:
        show_answer(remote, body)
    if checked:
        echo(f"checked: {', '.join(checked)}", err=True)


def needs(method: str, path: str, query: Params, body: Any) -> Iterator[str]:
    """Paths whose GET has to answer, or the broker would refuse the request."""
    if _OF_ITSELF.fullmatch(path):
        yield from [path] if method == "DELETE" else []
    elif not (method == "PUT" and _CREATES.fullmatch(path)):
        for pattern, needed in _NEEDED:
            if found := pattern.fullmatch(path):
                yield needed.format(found[1])
                break
    said = body if isinstance(body, dict) else {}
    for broker in (query.get("destinationBroker"), said.get("to"), said.get("broker")):
        if isinstance(broker, str) and broker:
            yield f"/v1/brokers/{quote(broker, safe=':[]')}"
    if said.get("namespace"):
        yield f"/admin/v2/namespaces/{said['namespace']}/bundles"
    if path == "/v1/bundles/merge":
        yield from (f"/v1/bundles/{bundle}" for bundle in said["bundles"])


def _check_allowed(path: str, needed: str, found: Any) -> None:
    """A plan says what may be done to it, a setting whether it may change. Raises Failed."""
    action = path.rpartition("/")[2]
    if needed.startswith("/v1/plans/") and action not in found["may"]:
        may = ", ".join(found["may"]) or "nothing"
        raise Failed(f"plan {found['id']} is {found['state']}: you may not {action} it now; you may: {may}")
    if needed.startswith("/v1/config/") and not found["live"]:
        raise Failed(f"{found['name']} cannot change while brokers run: give it where each broker is started")


async def _check_absent(remote: Remote, path: str) -> None:
    try:
        await ask(remote, "GET", f"{path}/bundles")
    except Failed as error:
        if error.status == 404:
            return
        raise
    raise Failed(f"namespace {path.removeprefix('/admin/v2/namespaces/')} exists already")
