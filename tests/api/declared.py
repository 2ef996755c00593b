"""Whether an answer is one that `/openapi.json` declares: its status, its media type, the shape of its body."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from jsonschema import Draft202012Validator
from starlette.routing import compile_path

from loadmanager_api.access.rules import RULES
from loadmanager_api.application import routes_of_all
from loadmanager_api.openapi import EVERYWHERE

UNLISTED = {204, 404, 405, 415, 501, *EVERYWHERE}
"""Statuses where no operation is listed: nothing there, another method, OPTIONS, and topics' contents."""


class Operation(NamedTuple):
    """One method of one path of the document."""

    path: str
    method: str
    responses: Mapping[str, Any]
    parameters: Sequence[Mapping[str, Any]]


def check(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Fail unless the document declares this answer."""
    found = operation_of("GET" if method == "HEAD" else method, path.partition("?")[0])
    where = f"{method} {path} answers {status} {body[:300]!r}"
    if found is None:
        page = path in ("/", "/docs") or path.startswith("/dashboard/")
        assert page or status in UNLISTED or path.startswith(("/openapi.json", "/admin/namespaces/")), where
        return
    declared = found.responses.get(str(status))
    assert declared is not None, f"{where}, which {found.method} {found.path} does not declare"
    declared = _resolved(declared)
    kind = headers.get("Content-Type", "").partition(";")[0]
    if status == 200 and method in ("GET", "HEAD"):
        assert ("304" in found.responses) == ("ETag" in headers), f"{where}; {found.path} and 304"
    assert kind in declared.get("content", {"": None}), f"{where} as {kind!r}, which is not declared"
    if body and "json" in kind:
        validator = _validator(found.path, found.method, str(status), kind)
        wrong = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(_decoded(body))]
        assert not wrong, f"{where}, which is not of the declared shape: {wrong}"


@cache
def operation_of(method: str, path: str) -> Operation | None:
    """The operation that answers such a request: the one with the longest literal part, as routes are laid out."""
    found = [each for pattern, each in _operations() if each.method == method and pattern.match(path)]
    return max(found, key=lambda each: len(re.sub(r"{\w+}", "", each.path)), default=None)


def operations() -> list[Operation]:
    """All that are in the document."""
    return [each for _, each in _operations()]


def holds_lists(operation: Operation) -> bool:
    """Whether its answer has a list, or a mapping with any names, anywhere."""
    content = _resolved(operation.responses["200"]).get("content", {}).get("application/json", {})
    return _holds_lists(content.get("schema", {}), frozenset())


def _holds_lists(schema: Any, within: frozenset[str]) -> bool:
    match schema:
        case {"$ref": str(ref)}:
            shape = _document()["components"]["schemas"][ref.rpartition("/")[2]]
            return ref not in within and _holds_lists(shape, within | {ref})
        case {"type": "array"} | {"type": "object", "additionalProperties": dict()}:
            return True
        case dict():
            parts = [*schema.get("properties", {}).values()]
            parts += [each for name in ("anyOf", "oneOf", "allOf") for each in schema.get(name, ())]
            return any(_holds_lists(each, within) for each in parts)
        case _:
            return False


@cache
def _document() -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(routes_of_all().openapi()))


@cache
def _operations() -> list[tuple[re.Pattern[str], Operation]]:
    return [
        (_patterns()[path], Operation(path, method.upper(), operation["responses"], operation.get("parameters", [])))
        for path, methods in _document()["paths"].items()
        for method, operation in methods.items()
    ]


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    """By the path in the document: the pattern by which its route is found."""
    compiled = [compile_path(path) for path in RULES]
    return {path: pattern for pattern, path, _ in compiled}


def _resolved(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = declared.get("$ref")
    return declared if reference is None else _document()["components"]["responses"][reference.rpartition("/")[2]]


@cache
def _validator(path: str, method: str, status: str, kind: str) -> Draft202012Validator:
    schema = _resolved(_document()["paths"][path][method.lower()]["responses"][status])["content"][kind]["schema"]
    return Draft202012Validator({**schema, "components": _document()["components"]})


def _decoded(body: bytes) -> Any:
    return msgspec.json.decode(body)
