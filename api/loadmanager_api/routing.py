"""`RuledRoute`, the class of all routes: who may run an endpoint, on which loop, and with what.

It runs an endpoint for those whom its rule allows, if the request makes sense, and needs a rule for each route when the
application is made.

By default the control loop runs an endpoint, unless it is marked `on_http_loop`. An endpoint that may change something
runs within `audited`, which writes its audit entry. The endpoints' loop parses every request and writes every answer. A
marked endpoint runs there too: it may touch the node only as other threads may (`loadmanager/embedding/handover.py`),
and answers even while the control loop is busy.

Endpoints take, beside the parameters of a request, the node in some state (503 while it is in an earlier one), who sent
the request and what they may do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from difflib import get_close_matches
from functools import partial, wraps
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from structlog.contextvars import bind_contextvars

from loadmanager.broker.node import Incarnation, Node
from loadmanager.errors import Forbidden, Unavailable
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.access import ACCESS, SENDER, Access, May
from loadmanager_api.access.rules import rule_for
from loadmanager_api.access.sender import PRINCIPAL, Sender, sender_of
from loadmanager_api.audit import AuditedRequest, asked, audited
from loadmanager_api.http.probes import acting
from loadmanager_api.operations import ATTEMPT, attempt_of
from loadmanager_api.paging import linked
from loadmanager_api.state import HANDOVER, kept, node_behind
from statechannel.law.record import BrokerId

PULSARS = ("/admin/", "/lookup/")
"""Below these, unknown parameters of a query are ignored: Pulsar's tools send more than is of use here."""


PARAMETERS_AT_MOST = 100


class RuledRoute(APIRoute):
    """A route that runs for those whom its rule allows."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods: Iterable[str] = options.get("methods") or ("GET",)
        (self.rule,) = {rule_for(method.upper(), path) for method in methods}
        self.changes = "GET" not in methods and self.rule.role.rank >= AccessRole.OPERATOR.rank
        """Whether it may change something: then its requests are in the audit log."""
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, rule, changes = super().get_route_handler(), self.rule, self.changes
        known = frozenset(_query_of(self.dependant))
        strict = not self.path.startswith(PULSARS)
        versioned = "if-match" in _headers_of(self.dependant)

        async def ruled(request: Request) -> Response:
            access: Access | None = request.scope.get(ACCESS)
            who = sender_of(request.scope)
            bind_contextvars(principal=who.name)  # for what this request's task logs, on the control loop too
            if access is not None:
                try:
                    access.check(request.scope[PRINCIPAL], rule, request.path_params, request.query_params)
                except Forbidden as error:
                    access.refuse("role", request.scope, 403, str(error))
                    raise
            check_query(request.query_params, known, strict=strict)
            if "if-match" in request.headers and request.method != "GET" and not versioned:
                raise HTTPException(400, "If-Match: this has no versions; leave the header out")
            sender = who if changes else None
            SENDER.set(sender)
            ATTEMPT.set(None)
            if sender is not None:
                these = kept(request)
                attempt = attempt_of(request, sender, these.handover, these.attempts)
                if attempt is not None:
                    return await attempt.carry_out(partial(handle, request))
            return linked(request, await handle(request))

        return ruled


def _query_of(dependant: Dependant) -> Iterator[str]:
    """The parameters of the query that a route or one of its dependencies takes."""
    yield from (each.alias for each in dependant.query_params)
    for each in dependant.dependencies:
        yield from _query_of(each)


def _headers_of(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.header_params)
    for each in dependant.dependencies:
        yield from _headers_of(each)


def check_query(given: Iterable[str], known: Collection[str], *, strict: bool) -> None:
    """Raise HTTPException (400) for a parameter that is not known; unless `strict` only if it is nearly a known one.

    Each is compared with all known ones, so 400 for more than PARAMETERS_AT_MOST, too.
    """
    names = list(given)
    if len(names) > PARAMETERS_AT_MOST:
        raise HTTPException(400, f"the query has {len(names):,} parameters, at most {PARAMETERS_AT_MOST} are read")
    for name in names:
        near = get_close_matches(name, known) if name not in known else []
        if near or (strict and name not in known):
            meant = f"; did you mean {near[0]}?" if near else ""
            raise HTTPException(400, f"query.{name}: there is no such parameter{meant}")


Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Any]])

_as_they_are: set[Callable[..., Any]] = set()


def on_http_loop(endpoint: Endpoint) -> Endpoint:
    """Run this endpoint on the loop that parses its requests."""
    _as_they_are.add(endpoint)
    return endpoint


class ControlRouter(APIRouter):
    """A router whose endpoints run on the control loop; requests are parsed and validated before.

    Each of its routes needs a rule that says who may use it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=RuledRoute, **options)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        crossing = endpoint if endpoint in _as_they_are else _crossing(endpoint, options.get("status_code") or 200)
        if options.get("status_code") == 204:
            options["response_class"] = Response  # the default class says that nothing is JSON
        super().add_api_route(path, crossing, **options)


def _crossing(endpoint: Callable[..., Coroutine[Any, Any, Any]], status: int) -> Callable[..., Any]:
    @wraps(endpoint)
    async def crossed(**named: Any) -> Any:
        handover, sender = HANDOVER.get(), SENDER.get()
        if sender is None:
            return await handover.ask(lambda: endpoint(**named))
        attempt = ATTEMPT.get()
        if attempt is not None and not named.get("dry_run"):
            await attempt.begin(endpoint.__name__, named)
        request = AuditedRequest(sender, endpoint.__name__, named, asked(named), status)
        return await handover.ask(lambda: audited(handover.node, request, partial(endpoint, **named)))

    # Older releases of FastAPI look names in annotations up in the module of the wrapper.
    vars(crossed)["__signature__"] = inspect.signature(endpoint, eval_str=True)
    return on_http_loop(crossed)


async def _any_node(request: Request) -> Node:
    return node_behind(request)


async def _caught_up_node(request: Request) -> Node:
    node = node_behind(request)
    if node.incarnation is None:
        raise Unavailable("this broker is starting: it has not read the channel yet; try again")
    return node


async def _incarnation(request: Request) -> Incarnation:
    return acting(node_behind(request))


AnyNode = Annotated[Node, Depends(_any_node)]
"""The node, in any state."""

TheNode = Annotated[Node, Depends(_caught_up_node)]
"""The node once its replica has been read to the end; its table may be read."""

Acting = Annotated[Incarnation, Depends(_incarnation)]
"""The incarnation that is registered and acts."""


async def _may(request: Request) -> May:
    return May(request.scope)


Permission = Annotated[May, Depends(_may)]
"""What the sender of the request may do."""


async def _sender(request: Request) -> Sender:
    return sender_of(request.scope)


async def _author(request: Request) -> str:
    return sender_of(request.scope).name


Author = Annotated[str, Depends(_author)]
"""The authenticated principal; without authentication the header `X-Author`, else the client's address."""

AuthorOf = Annotated[Sender, Depends(_sender)]
"""The same, for requests whose body may name an author."""


def no_broker(node: Node, broker: str) -> str:
    """What to say of a broker that is not registered."""
    return f"there is no broker {broker}; registered: {', '.join(sorted(node.membership.peers)) or 'none'}"


def leader_of(node: Node) -> BrokerId | None:
    """The leader as last seen; None if it is known to be dead."""
    leadership = node.world.coordination.leadership
    if leadership is None or leadership.leader in node.membership.suspected:
        return None
    return leadership.leader
