"""The page of all REST routes, from the application's OpenAPI document and the rules of access.

`PYTHONPATH=.:api python docs/rest_page.py` prints it; the site has it as `reference/rest.md`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from loadmanager_api.access.rules import RULES, Scope
from loadmanager_api.application import routes_of_all

Schema = Mapping[str, Any]

_HEAD = """# REST routes

Every route of a broker, from its `/openapi.json`. [Statuses](../http.md#errors), [pages](../http.md#pages),
[conditions](../http.md#conditional-requests) and [limits](../http.md#limits) are the same for all.
[Roles](../security.md#what-they-may-do) matter where clients must authenticate. A `*` marks a required field.

Two headers of every change are left out below: [`Idempotency-Key` and `Prefer`](../http.md#operations). Every error is
a [Problem](#problem). Every route may answer 400, 401, 403, 408, 413, 421, 429, 431, 500 and 503, a GET with an `ETag`
also 304, and a change also 202, 415 and 422.
"""
_COMMON_HEADERS = {"Idempotency-Key", "Prefer"}
_COMMON_PROBLEMS = {"202", "400", "401", "403", "408", "413", "415", "421", "422", "429", "431", "500", "503"}


def rest(document: Schema) -> Iterator[str]:
    """The page's Markdown, in pieces; `document` is an OpenAPI 3.1 document."""
    yield _HEAD
    by_tag: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((path, method, operation))
    roles = _roles()
    for tag, operations in by_tag.items():
        yield f"## {tag.capitalize()}\n"
        yield "| method | route | does | role |\n|---|---|---|---|"
        for path, method, operation in operations:
            yield f"| {method.upper()} | `{path}` | {_sentence(operation)} | {roles[method.upper(), path]} |"
        yield ""
        for path, method, operation in operations:
            yield from _operation(path, method, operation)
    yield "## Shapes\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _shape(name, schema)


def _roles() -> dict[tuple[str, str], str]:
    """Role and place by method and path, the path as OpenAPI writes it."""
    return {
        (method, re.sub(r":\w+}", "}", path)): str(rule.scope)
        if rule.scope is Scope.OPEN
        else f"{rule.role} {rule.scope}"
        for path, methods in RULES.items()
        for method, rule in methods.items()
    }


def _sentence(operation: Schema) -> str:
    """The first sentence of the description."""
    return _cell(re.split(r"(?<=\.)\s", operation["description"].strip(), maxsplit=1)[0])


def _operation(path: str, method: str, operation: Schema) -> Iterator[str]:
    """What the table leaves out of an operation: further sentences, parameters, body, answers."""
    yield f"### {method.upper()} `{path}`\n\n{operation['description']}\n"
    rows = [_parameter(each) for each in operation.get("parameters", ()) if not _is_plain(each)]
    if rows:
        yield "| parameter | in | type | |\n|---|---|---|---|\n" + "".join(rows)
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}\n"
    answers = [
        f"{status}: {_content(answer) or 'no body'}"
        for status, answer in operation["responses"].items()
        if "$ref" not in answer and status != "304"
    ]
    problems = [status for status, answer in operation["responses"].items() if "$ref" in answer]
    rarer = ", ".join(status for status in problems if status not in _COMMON_PROBLEMS)
    yield f"Answers {'; '.join(answers)}{f'; problems: {rarer}' if rarer else ''}\n"


def _is_plain(parameter: Schema) -> bool:
    """Returns True if the page says all of it elsewhere: part of the path, or a header of every change."""
    return parameter["name"] in _COMMON_HEADERS or (
        parameter["in"] == "path" and "description" not in parameter and parameter["schema"].get("type") == "string"
    )


def _parameter(parameter: Schema) -> str:
    schema = parameter["schema"]
    name = f"`{parameter['name']}`{'*' if parameter['required'] else ''}"
    return f"| {name} | {parameter['in']} | {_type(schema)} | {_cell(_remarks({**schema, **parameter}))} |\n"


def _content(holder: Schema) -> str:
    return ", ".join(
        _type(content.get("schema", {})) + ("" if kind == "application/json" else f" as `{kind}`")
        for kind, content in holder.get("content", {}).items()
    )


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n\n{schema.get('description', '')}\n"
    required = schema.get("required", ())
    rows = [
        f"| `{field}`{'*' if field in required else ''} | {_type(of)} | {_cell(_remarks(of))} |\n"
        for field, of in schema.get("properties", {}).items()
    ]
    if rows:
        yield "| field | type | |\n|---|---|---|\n" + "".join(rows)
    else:
        yield f"{_type(schema)}\n"


def _remarks(schema: Schema) -> str:
    """Default, limits and description."""
    found = []
    if schema.get("description"):
        found.append(schema["description"])
    if schema.get("default") not in (None, "", [], {}):
        found.append(f"default `{schema['default']}`")
    for key, word in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if key in schema:
            found.append(f"{word} {_number(schema[key])}")
    if "maxLength" in schema:
        found.append(f"at most {schema['maxLength']} characters")
    if "maxItems" in schema:
        found.append(f"at most {schema['maxItems']}")
    return "; ".join(found)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, options)))
    if "const" in schema:
        return f"`{schema['const']!r}`".replace("'", '"')
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) else "object"
    return str(kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write("\n".join(rest(routes_of_all().openapi())))
