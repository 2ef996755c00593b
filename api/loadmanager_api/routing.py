"""`RuledRoute`, the class of all routes: runs an endpoint for those whom its rule allows, if the request makes sense.

It needs a rule for each route when the application is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from structlog.contextvars import bind_contextvars

from loadmanager.errors import Forbidden
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.access import Access
from loadmanager_api.access.authorship import sender_of
from loadmanager_api.access.gate import ACCESS, SENDER
from loadmanager_api.access.principal import PRINCIPAL
from loadmanager_api.access.rules import rule_for
from loadmanager_api.kept import kept
from loadmanager_api.long_work import ATTEMPT, attempt_of
from loadmanager_api.paging import linked

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
