"""What the OpenAPI document says beyond what FastAPI knows: every status with its problem, who may ask, and the shapes
of answers that are msgspec structs.

A route declares with `answers` what it answers beside its success and `EVERYWHERE`, which is added to all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from fastapi.routing import APIRoute

from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.rules import RULES, Scope
from loadmanager_api.problems import Problem, problem

Document = dict[str, Any]
Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_SCHEMAS = "#/components/schemas/"
_STRUCTS = "#/structs/"
_PROBLEM = "application/problem+json"

_PROBLEMS: dict[int, tuple[str, str, str]] = {
    400: ("BadRequest", "The body is not JSON, or a field or parameter is invalid.", "query.limit: not a number"),
    401: ("NotAuthenticated", "No credentials, or wrong ones, where the broker asks for them.", "say who you are"),
    403: (
        "Forbidden",
        "The role is missing, or a page of another origin tries to write.",
        "ann is not operator in t/n",
    ),
    404: ("NotFound", "The resource does not exist.", "there is no namespace t/n"),
    408: ("TooSlow", "The request took too long to arrive.", "the body did not arrive within 30 s"),
    409: (
        "Conflict",
        "The current state does not allow the request.",
        "t/n/0x00000000_0x40000000 is moving; try again",
    ),
    410: ("Gone", "The log or the history does not reach back that far.", "the log begins later: start without since"),
    412: ("NotAllowed", "A name, range or value is not allowed.", "'a b' is not the name of a namespace"),
    413: ("TooLarge", "The body is too large.", "the body may have at most 1,048,576 bytes; ask for less at once"),
    415: ("NoJson", "The body is not declared as JSON.", "send the body with Content-Type: application/json"),
    421: (
        "Misdirected",
        "`Host` is not a name of this broker, or `Loadmanager-Cluster` is not its cluster.",
        "this broker is not known as 'example.org'",
    ),
    422: ("KeyUsed", "`Idempotency-Key` belongs to another request, or its answer is lost.", "use another key"),
    429: ("TooMany", "The client sends more than it may; `Retry-After` says when to go on.", "send fewer"),
    431: ("HeadTooLarge", "The head of the request is too large.", "the head may have at most 32,768 bytes"),
    500: ("InternalError", "A bug; its trace is in the broker's log.", "an internal error"),
    501: ("NotHere", "A load manager does not offer this.", "ask the service"),
    503: (
        "Unavailable",
        "Not possible now; `Retry-After` says when. A `record_id`: it may still be done.",
        "try again",
    ),
}
"""By status: the name of the answer in the document, when it is given, and the detail of its example."""

EVERYWHERE = (400, 401, 403, 408, 413, 421, 429, 431, 500, 503)
CHANGING = (415,)
UNTAGGED = (
    "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
    "/v1/history/{name}",
    "/v1/history/analyses/{name}",
)
"""Routes whose JSON has no ETag: lookups, and files that are sent in pieces."""
RETRYING = (429, 503)
TWICE = ("list_brokers", "split_bundle")
"""Names of endpoints that both Pulsar's and our routes have."""

OPTIONAL: Responses = {"default": {}}
"""What each route declares to FastAPI, which then adds no answer 422; `complete` takes it away."""

_structs: dict[str, type[msgspec.Struct]] = {}


def answers(*statuses: int, json: Schema | None = None, kinds: Iterable[str] = ()) -> Responses:
    """What a route answers: problems of these statuses, a redirect (307), and on success, where FastAPI does not know
    it, `json`, or text or bytes of one of the media types `kinds`.
    """
    found: Responses = {status: _reference(status) for status in statuses if status != 307}
    if 307 in statuses:
        found[307] = {"description": "Ask the broker at `Location`.", "headers": {"Location": _header("A URL.")}}
    content = {kind: {"schema": {"type": "string"}} for kind in kinds}
    if json is not None:
        content["application/json"] = {"schema": json}
    if content:
        found[200] = {"content": content}
    return found


def shape(*structs: type[msgspec.Struct]) -> Schema:
    """The schema of a struct, or of one of several."""
    _structs.update({struct.__name__: struct for struct in structs})
    found = [{"$ref": f"{_STRUCTS}{struct.__name__}"} for struct in structs]
    return found[0] if len(found) == 1 else {"anyOf": found}


def body(json: Schema) -> Document:
    """What FastAPI does not know of an operation whose body the route reads itself."""
    return {"requestBody": {"content": {"application/json": {"schema": json}}, "required": True}}


def operation_id(route: APIRoute) -> str:
    """The name of an operation in generated clients: its endpoint's, with `_v2` for Pulsar's where ours has it, too."""
    return f"{route.name}_v2" if route.name in TWICE and route.path.startswith("/admin/") else route.name


def complete(document: Document) -> None:
    """Make the document say what every route answers, and what it asks of clients."""
    components = document["components"]
    components["responses"] = {
        name: _response(status, *_PROBLEMS[status]) for status, (name, _, _) in _PROBLEMS.items()
    }
    components["responses"]["Begun"] = {
        "description": "With `Prefer: respond-async`: it was begun, and is the operation at `Location`.",
        "headers": {"Location": _header("The operation."), "Preference-Applied": _header("`respond-async`")},
        "content": {"application/json": {"schema": {"$ref": f"{_SCHEMAS}OperationResponse"}}},
    }
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        "certificate": {"type": "mutualTLS"},
    }
    _add_structs(document)
    for path, method, operation in operations(document):
        given = operation["responses"]
        given.pop("default", None)
        more = EVERYWHERE if method == "get" else (*EVERYWHERE, *CHANGING)
        given |= {str(status): _reference(status) for status in more}
        if method == "get" and path not in UNTAGGED and _kinds(given.get("200", {})) == {"application/json"}:
            given["304"] = {"description": "It is what `If-None-Match` names."}
        if _may_be_long(path, method):
            given["422"] = _reference(422)
            given.setdefault("202", {"$ref": "#/components/responses/Begun"})
            operation.setdefault("parameters", []).extend(_LONG)
        alone = {status: {"$ref": each["$ref"]} if "$ref" in each else each for status, each in given.items()}
        operation["responses"] = dict(sorted(alone.items()))
        if not _is_open(path, method):
            operation["security"] = [{"token": []}, {"certificate": []}]


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method in lower case, and description of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


_LONG = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Of requests with the same key (the last 20,000) one is carried out; the others get its answer.",
        "schema": {"type": "string", "pattern": "^[!#-~]{1,200}$"},
    },
    {
        "name": "Prefer",
        "in": "header",
        "required": False,
        "description": "`respond-async`: answer 202 as soon as it is begun.",
        "schema": {"type": "string"},
    },
]


def _may_be_long(path: str, method: str) -> bool:
    """Whether the request may be an operation: whether it is audited."""
    rules = next((rules for each, rules in RULES.items() if re.sub(r":\w+}", "}", each) == path), {})
    rule = rules.get(method.upper())
    return method != "get" and rule is not None and rule.role.rank >= AccessRole.OPERATOR.rank


def _kinds(response: Mapping[str, Any]) -> set[str]:
    return set(response.get("content", {}))


def _response(status: int, _: str, when: str, detail: str) -> dict[str, Any]:
    example = msgspec.to_builtins(problem(status, detail, retry_after_s=1.0 if status in RETRYING else None))
    content = {_PROBLEM: {"schema": {"$ref": f"{_SCHEMAS}Problem"}, "example": example}}
    described: dict[str, Any] = {"description": when, "content": content}
    if status in RETRYING:
        described["headers"] = {"Retry-After": _header("Seconds to wait.", "integer")}
    return described


def _reference(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"}


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


def _is_open(path: str, method: str) -> bool:
    return path in RULES and RULES[path][method.upper()].scope is Scope.OPEN


def _add_structs(document: Document) -> None:
    """Put the shapes of the structs beside those of FastAPI; one of a taken name is called `Explained…`."""
    schemas = document["components"]["schemas"]
    _, shapes = msgspec.json.schema_components(
        [Problem, *_structs.values()],
        schema_hook=lambda _: {"description": "any value"},
        ref_template=_STRUCTS + "{name}",
    )
    names = {name: name if name not in schemas else f"Explained{name}" for name in shapes}
    for name, shape in shapes.items():
        if "title" in shape:  # generators name their classes by it
            shape["title"] = names[name]
        schemas[names[name]] = _with_null(_renamed(shape, names))
    for _, _, operation in operations(document):
        operation |= _renamed(operation, names)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    match value:
        case {"$ref": str(ref)} if ref.startswith(_STRUCTS):
            return {"$ref": _SCHEMAS + names[ref.removeprefix(_STRUCTS)]}
        case dict():
            return {key: _renamed(each, names) for key, each in cast("Document", value).items()}
        case list():
            return [_renamed(each, names) for each in cast("list[Any]", value)]
        case _:
            return value


def _with_null(value: Any) -> Any:
    """Numbers of structs may be infinite, which JSON has not: then they are null."""
    match value:
        case {"type": "number", **rest}:
            return {"type": ["number", "null"], **rest}
        case dict():
            return {key: _with_null(each) for key, each in cast("Document", value).items()}
        case list():
            return [_with_null(each) for each in cast("list[Any]", value)]
        case _:
            return value
