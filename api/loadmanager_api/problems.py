"""All errors in one shape: `application/problem+json` (RFC 9457), and `reason`, which pulsar-admin shows.

Maps errors of the lower packages to HTTP statuses, and answers them in place of FastAPI. An unexpected error is a 500
without internals; its trace goes to the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from loadmanager.diagnostics.redaction import redact_and_shorten
from loadmanager.errors import Conflict, Forbidden, Gone, Invalid, LoadManagerError, NotFound, Unavailable
from statechannel.errors import CoordinationUnavailable, Fenced, InvalidName, LogUnavailable, RecordTooLarge

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError

RETRY_AFTER_S = 1.0

_TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    412: "Invalid name or range",
    413: "Body too large",
    408: "Request took too long to arrive",
    415: "Body of another kind",
    421: "Misdirected request",
    422: "Key cannot be used",
    429: "Too many requests",
    431: "Head too large",
    500: "Internal error",
    501: "Not implemented",
    503: "Unavailable",
}


class PreconditionFailed(LoadManagerError):
    """`If-Match` or `If-None-Match` does not hold: the thing was changed since."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every error. `record_id` is given where a record's verdict is still open."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    record_id: str | None = None
    retry_after_s: float | None = None


def title_of(status: int) -> str:
    """The title of a problem of this status."""
    return _TITLES.get(status, "Error")


def problem(
    status: int,
    detail: str,
    *,
    title: str | None = None,
    record_id: str | None = None,
    retry_after_s: float | None = None,
) -> Problem:
    """A problem of this status; its type is a URN that programs may compare."""
    title = title or title_of(status)
    urn = f"urn:loadmanager:problem:{title.lower().replace(' ', '-')}"
    detail = detail.encode("utf-8", "backslashreplace").decode()  # it may quote what is not Unicode
    detail = redact_and_shorten(detail)
    return Problem(urn, title, status, detail, detail, record_id, retry_after_s)


def problem_of(error: Exception) -> Problem:
    """The problem for an exception of the lower packages."""
    match error:
        case Invalid() | InvalidName():
            return problem(412, str(error))
        case NotFound():
            return problem(404, str(error))
        case PreconditionFailed():
            return problem(412, str(error), title="Precondition failed")
        case Forbidden():
            return problem(403, str(error))
        case Conflict():
            return problem(409, str(error))
        case Gone():
            return problem(410, str(error))
        case Unavailable():
            return problem(503, str(error), record_id=error.record_id, retry_after_s=error.retry_after_s)
        case RecordTooLarge():
            return problem(413, str(error))
        case LogUnavailable() | CoordinationUnavailable() | Fenced():
            return problem(503, str(error), retry_after_s=RETRY_AFTER_S)
        case _:
            return problem(500, "an internal error; the log of this broker has the details")


def respond(found: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as a response."""
    extra = dict(headers or {})
    if found.retry_after_s is not None:
        extra["Retry-After"] = str(max(1, round(found.retry_after_s)))
    return Response(msgspec.json.encode(found), found.status, extra, "application/problem+json")


UNREADABLE = "There was an error parsing the body"
"""FastAPI's message for a body on which the parser failed otherwise than by a syntax error."""


def install(app: FastAPI) -> None:
    """Replace FastAPI's own error answers."""
    from fastapi.exceptions import RequestValidationError  # with the routes: a starting broker does without

    known = (LoadManagerError, InvalidName, LogUnavailable, RecordTooLarge, CoordinationUnavailable, Fenced)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(ClientDisconnect, _gone)


async def _known(request: Request, error: Exception) -> Response:
    return respond(problem_of(error))


async def _gone(request: Request, error: Exception) -> Response:
    """No client reads it; without it the log would show a bug of the broker's."""
    return respond(problem(400, "the connection ended before the body was there"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}; see /openapi.json for what there is"
    elif error.status_code == 400 and detail == UNREADABLE:
        detail = (
            "the body is not readable JSON: malformed, nested too deeply, not UTF-8, or with a number that is too long"
        )
    return respond(problem(error.status_code, detail), error.headers)


async def _validation(request: Request, error: Exception) -> Response:
    errors = cast("RequestValidationError", error).errors()
    details = [_line(cast("dict[str, Any]", e)) for e in errors]
    kind = request.headers.get("content-type", "")
    if any(e["loc"][:1] == ("body",) for e in errors) and "json" not in kind:
        details.append("send the body with Content-Type: application/json")
    return respond(problem(400, "; ".join(details)))


def _line(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', 'it does not parse')}"
    allowed: dict[str, Any] = error.get("ctx") or {}
    match error["type"]:
        case "too_long":
            return f"{where}: at most {allowed['max_length']} are allowed, not {allowed['actual_length']}"
        case "too_short":
            return f"{where}: at least {allowed['min_length']} are needed, not {allowed['actual_length']}"
        case "missing" if error["loc"] == ("body",):
            return "this needs a JSON body"
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{where}: there is no such field"
        case "value_error":
            return f"{where}: {str(error['msg']).removeprefix('Value error, ')}"
        case _:
            return f"{where}: {error['msg']}"
