"""The answers of routes to errors, in place of FastAPI's own."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loadmanager.errors import LoadManagerError
from loadmanager_api.errors import problem, problem_of, respond
from statechannel.errors import CoordinationUnavailable, Fenced, InvalidName, LogUnavailable, RecordTooLarge

UNREADABLE = "There was an error parsing the body"
"""FastAPI's message for a body on which the parser failed otherwise than by a syntax error."""


def install(app: FastAPI) -> None:
    """Replace FastAPI's own error answers."""
    known = (LoadManagerError, InvalidName, LogUnavailable, RecordTooLarge, CoordinationUnavailable, Fenced)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)


async def _known(request: Request, error: Exception) -> Response:
    return respond(problem_of(error))


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
    assert isinstance(error, RequestValidationError)
    details = [_line(cast("dict[str, Any]", e)) for e in error.errors()]
    kind = request.headers.get("content-type", "")
    if any(e["loc"][:1] == ("body",) for e in error.errors()) and "json" not in kind:
        details.append("send the body with Content-Type: application/json")
    return respond(problem(400, "; ".join(details)))


def _line(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error.get('ctx', {}).get('error', 'it does not parse')}"
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
