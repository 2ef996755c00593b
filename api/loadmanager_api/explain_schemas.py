"""The schema of a request to `what-if`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from loadmanager.decisions.explaining.what_if import BROKERS_AT_MOST, Edits
from loadmanager_api.shapes import WHOLE, Body

Name = Annotated[str, Field(min_length=1, max_length=300)]


class WhatIfWish(Body):
    """The differences to assume; each may be left out.

    `capacity` is that of each new broker (`cpu` in cores, …), by default the median of all. `loads` gives a factor for
    each namespace. `policies` are documents by `kind/name`; null deletes one. `rested` assumes that no bundle moved
    lately.
    """

    add_brokers: Annotated[int, Field(strict=True, ge=0, le=BROKERS_AT_MOST), WHOLE] = 0
    capacity: Annotated[dict[Name, float], Field(max_length=5)] = Field({})
    remove_brokers: Annotated[list[Name], Field(max_length=BROKERS_AT_MOST)] = Field([])
    settings: Annotated[dict[Name, float | int | str | bool], Field(max_length=200)] = Field({})
    loads: Annotated[dict[Name, float], Field(max_length=1_000)] = Field({})
    policies: Annotated[dict[Name, dict[str, Any] | None], Field(max_length=1_000)] = Field({})

    rested: bool = False

    def edits(self) -> Edits:
        """For the question itself."""
        return Edits(
            self.add_brokers,
            self.capacity,
            tuple(self.remove_brokers),
            self.settings,
            self.loads,
            self.policies,
            self.rested,
        )
