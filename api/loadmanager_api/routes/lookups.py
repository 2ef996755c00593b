"""Where a topic is served, for Pulsar's clients one by one and for ours many at once.

Any broker answers, and never by a redirect: it asks its own replica, and assigns bundles that have no owner. The fast
path in `http/lookups.py` answers most of `GET /lookup/v2/topic/…` before it comes here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field, StringConstraints

from loadmanager.errors import Invalid
from loadmanager_api.http.lookups import (
    MAX_TOPICS,
    channel_owner,
    is_channel_topic,
    known_peer,
    lookup_headers,
    lookup_urls,
)
from loadmanager_api.openapi import answers
from loadmanager_api.routing import Acting, ControlRouter, Permission, TheNode, on_http_loop
from loadmanager_api.shapes import WHOLE
from loadmanager_api.state import kept
from statechannel.law.bundle import Key

MAX_TOPIC_CHARS = 4_096

LONGEST_WAIT_MS = 2**53
"""Longer ones are no numbers of seconds any more; the setting `lookup_timeout_s` is shorter anyway."""


class LookupData(BaseModel):
    """Pulsar's lookup answer. `brokerUrl` is the owner's `pulsar` URL, or its `httpUrl` if it has none."""

    brokerUrl: str  # noqa: N815
    httpUrl: str  # noqa: N815
    nativeUrl: str  # noqa: N815
    brokerUrlSsl: str = ""  # noqa: N815


class LookupRequest(BaseModel):
    """Topics, as `tenant/ns/name` or with their domain. `timeout_ms` limits the wait for bundles on their way."""

    topics: Annotated[
        list[Annotated[str, StringConstraints(max_length=MAX_TOPIC_CHARS)]],
        Field(min_length=1, max_length=MAX_TOPICS),
    ]
    timeout_ms: Annotated[int, Field(strict=True, ge=0, le=LONGEST_WAIT_MS), WHOLE] | None = None


class LookupAnswer(BaseModel):
    """Where a topic is served, or `error`, a problem that says why this is not known."""

    topic: str
    bundle: str | None = None
    broker: str | None = None
    incarnation: int | None = None
    admin_url: str | None = None
    urls: dict[str, str] | None = None
    token: str | None = None
    error: dict[str, Any] | None = None


class LookupAnswers(BaseModel):
    """One answer for each topic, in the order of the request."""

    answers: list[LookupAnswer]


router = ControlRouter(tags=["lookup"])

_SUFFIX = "/bundle"
LOOKED_UP = answers(404, 412, kinds=("text/plain",))
LOOKED_UP[200] |= {"model": LookupData}


@router.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:text}", response_model=None, responses=LOOKED_UP)
async def look_up(
    request: Request,
    response: Response,
    node: TheNode,
    acting: Acting,
    domain: Literal["persistent", "non-persistent"],
    tenant: str,
    namespace: str,
    topic: str,
) -> LookupData | Response:
    """Look up the owner of a topic. With `/bundle` appended, answer the range of its bundle, as text; 412 if it is not
    clear which of both is asked for.

    For the channel's own topics it answers the owner of that partition (partition 0 if none is named), since they
    cannot be looked up through themselves. 404 for an unknown namespace, 503 if no owner is found in time.
    """
    wants_range = topic.endswith(_SUFFIX) and _ends_in_suffix(request)
    if wants_range and "/" in topic.removesuffix(_SUFFIX) and not _is_encoded(request):
        raise Invalid(
            f"{topic!r} may be a topic, or one whose range is asked for: write its slashes as %2F, but not that of "
            "/bundle if the range is asked for"
        )
    name = topic.removesuffix(_SUFFIX) if wants_range else topic
    wanted = Key.parse(f"{domain}://{tenant}/{namespace}/{name}")
    if wants_range:
        return PlainTextResponse(acting.operations.bundle_of(wanted).bundle.range)
    if is_channel_topic(wanted):
        _, peer = channel_owner(node, wanted)
        return LookupData(**lookup_urls(peer.registration))
    located = await acting.lookup.locate(wanted, node.settings.lookup_timeout_s)
    response.headers.update(lookup_headers(located))
    return LookupData(**lookup_urls(known_peer(located).registration))


def _ends_in_suffix(request: Request) -> bool:
    """By the path as it was sent: a topic that is called `a/bundle` comes as `a%2Fbundle`."""
    return _raw(request).endswith(_SUFFIX.encode())


def _is_encoded(request: Request) -> bool:
    """Whether the topic has no slash but `%2F`."""
    return _raw(request).count(b"/") == request.scope["route"].path.count("/") + 1


def _raw(request: Request) -> bytes:
    return request.scope.get("raw_path") or request.scope["path"].encode()


@router.post("/v1/lookup", response_model=LookupAnswers)
@on_http_loop
async def look_up_many(
    request: Request, node: TheNode, acting: Acting, may: Permission, asked: LookupRequest
) -> Response:
    """Look up the owners of many topics at once. A topic that cannot be looked up has a problem as its `error`."""
    timeout_s = node.settings.lookup_timeout_s
    if asked.timeout_ms is not None:
        timeout_s = min(timeout_s, asked.timeout_ms / 1000)
    endpoints = kept(request)
    answers = await endpoints.batches.look_up_all(endpoints.handover, acting.lookup, asked.topics, timeout_s, may)
    return Response(answers, media_type="application/json")
