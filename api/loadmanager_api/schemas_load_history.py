"""What the jobs of the load history published, as JSON. Only shapes; the documents themselves come from the jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class ProvenanceShown(BaseModel):
    """How a result came about: by which job and when (`at`), over which time (`begin`, `end`; null: open), and from
    which versions of the lake's tables. `truncated`: there were more rows than these."""

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
    """What there is: results (`/v1/history/NAME`), names of pictures (`…/pictures/NAME.png`), and whether there is a
    report (`…/report`)."""

    results: list[ResultListed]
    pictures: list[str]
    report: bool


class ResultShown(BaseModel):
    """A result: a table, and `facts` that are none."""

    name: str
    provenance: ProvenanceShown
    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    format: int
