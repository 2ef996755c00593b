"""What the jobs of the load history published, as JSON. Only shapes; the documents themselves come from the jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class ProvenanceShown(BaseModel):
    """Where a result comes from: its job and when it ran (`at`), the time it covers (`begin`, `end`; null: open), and
    the versions of the tables it read. `truncated`: there are more rows than these.
    """

    job: str
    at: datetime
    begin: datetime | None
    end: datetime | None
    lake: str
    lake_versions: dict[str, int]
    release: str
    options: dict[str, Any]
    truncated: bool


class ResultListed(BaseModel):
    """A result without its rows."""

    name: str
    provenance: ProvenanceShown
    rows: int
    size_bytes: int


class LoadHistoryShown(BaseModel):
    """Everything that was published: results (`/v1/history/NAME`), pictures (`…/pictures/NAME.png`), and whether there
    is a report (`…/report`).
    """

    results: list[ResultListed]
    pictures: list[str]
    report: bool


class ResultShown(BaseModel):
    """A result: a table, and single `facts`."""

    name: str
    provenance: ProvenanceShown
    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    format: int
