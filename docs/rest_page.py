"""The page of all REST routes, from the application's OpenAPI document: what it accepts, what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_HEAD = """# REST routes

Every route that a broker answers, with its parameters, bodies and answers, as `/openapi.json` has them.
[What belongs together, and which routes are Pulsar's](../http.md). Every error is a [Problem](#problem);
[what each status means](../http.md#errors). A `*` marks a required field.
"""


def rest(document: Schema) -> Iterator[str]:
    """The page's Markdown, in pieces; `document` is an OpenAPI 3.1 document."""
    yield _HEAD
    by_tag: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((path, method, operation))
    for tag, operations in by_tag.items():
        yield f"## {tag.capitalize()}\n"
        for path, method, operation in operations:
            yield from _operation(path, method, operation)
    yield "## Shapes\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _shape(name, schema)


def _operation(path: str, method: str, operation: Schema) -> Iterator[str]:
    yield f"### {method.upper()} `{path}`\n\n{operation['description']}\n"
    rows = [_parameter(each) for each in operation.get("parameters", ())]
    if rows:
        yield "| parameter | in | type | |\n|---|---|---|---|\n" + "".join(rows)
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}\n"
    problems = [status for status, answer in operation["responses"].items() if "$ref" in answer and status != "500"]
    for status, answer in operation["responses"].items():
        if "$ref" not in answer:
            yield f"Answers {status}: {_content(answer) or 'no body'}\n"
    yield f"Problems: {', '.join(problems)}\n"


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
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) else "object"
    return str(kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
