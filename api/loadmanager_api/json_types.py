"""How bodies are read: as JSON Schema says, so that `/openapi.json` is true.

A number with a fraction of zero is an integer there. `true` is no number, 0 is not `false`, and text is neither.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True)
"""For bodies of our own routes: no other fields, and no value of another type."""


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE = BeforeValidator(_whole)
"""Goes behind the bounds of an integer, which must be strict: `Annotated[int, Field(strict=True, ge=0), WHOLE]`."""

Whole = Annotated[int, Field(strict=True), WHOLE]
