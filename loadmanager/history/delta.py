"""Opens tables of a lake on this machine's disk with delta-rs: in milliseconds, and without Spark."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from loadmanager.errors import Invalid
from loadmanager.history.columns import FORMAT, FORMAT_PROPERTY


def opened(path: Path) -> DeltaTable | None:
    """The newest version of a table; None where there is none.

    Raises Invalid for a damaged table, and as `check_format`.
    """
    with reading(path):
        found = DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None
        properties = {} if found is None else found.metadata().configuration
    check_format(str(path), properties)
    return found


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Raises Invalid in place of the errors that delta-rs has with a damaged table."""
    try:
        yield
    except DeltaError as error:
        why = str(error).splitlines()[0]  # a trace of Rust's stack follows
        raise Invalid(
            f"table {path.name} cannot be read: {why}; restore {path} from a copy, or ingest into another lake"
        ) from error


def check_format(path: str, properties: Mapping[str, str | None]) -> None:
    """Raises Invalid where a newer release wrote the lake in a way that this one cannot read."""
    written = int(properties.get(FORMAT_PROPERTY) or FORMAT)
    if written > FORMAT:
        raise Invalid(
            f"{path} is of a lake of format {written}, and this release reads up to {FORMAT}: "
            "upgrade this program, or point it at another lake"
        )
