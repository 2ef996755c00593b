"""Published results of the jobs: JSON files below one folder, with provenance. No Spark: brokers read them.

    <root>/analyses/<name>.json   <root>/<job>.json   <root>/report.html   <root>/pictures/<name>.png

By default the root is `published/` in the lake. A file is replaced atomically; readers never see half of one. Sizes are
bounded for writer and reader: a job publishes what people look at, the lake has the rest.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from loadmanager.errors import Invalid, NotFound

T = TypeVar("T")

FOLDER = "published"
ANALYSES = "analyses/"
FORMAT = 1
MAX_ROWS = 10_000
MAX_BYTES = 16 << 20
REPORT = "report.html"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_PATH = re.compile(rf"({ANALYSES})?{_NAME.pattern}")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How a result came about.

    `begin` and `end`: the time it is about (None: open). `at`: when it was made. `lake_versions` are those of the
    tables that were read, for time travel. `truncated`: there were more rows; the first in the job's own order were
    kept.
    """

    job: str
    at: datetime
    begin: datetime | None = None
    end: datetime | None = None
    lake: str = ""
    lake_versions: dict[str, int] = {}
    release: str = ""
    options: dict[str, Any] = {}
    truncated: bool = False


class Published(msgspec.Struct, frozen=True):
    """One result: a table, and `facts` beside it (a verdict, the settings to apply)."""

    name: str
    provenance: Provenance
    rows: list[dict[str, Any]]
    facts: dict[str, Any] = {}
    format: int = FORMAT


class Listed(msgspec.Struct, frozen=True):
    """A result without its rows."""

    name: str
    provenance: Provenance
    rows: int
    size_bytes: int


def publish(
    root: Path | str,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    provenance: Provenance,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write a result over the one before. Raises Invalid for a bad name, or if it is too large.

    `name` is a job's, or `analyses/<name>`. NaN and infinite floats become null.
    """
    path = _file(root, name)
    if len(rows) > MAX_ROWS:
        raise Invalid(f"{name} has {len(rows):,} rows; at most {MAX_ROWS:,} are published: aggregate, or take the top")
    result = Published(name, provenance, [dict(row) for row in rows], dict(facts or {}))
    return _write(path, msgspec.json.encode(result))


def publish_page(root: Path | str, html: str) -> Path:
    """The report. Raises Invalid if it is too large."""
    return _write(Path(root) / REPORT, html.encode())


def publish_picture(root: Path | str, name: str, png: bytes) -> Path:
    """A picture. Raises Invalid for a bad name, or if it is too large."""
    return _write(_picture(root, name), png)


def read(root: Path | str, name: str) -> Published:
    """A result. Raises NotFound, or Invalid for a bad name or a file of a later release."""
    with open_result(root, name) as file:
        return _decoded(file.read(MAX_BYTES), name, Published)


def open_result(root: Path | str, name: str) -> BinaryIO:
    """The file of a result, JSON, of bounded size. Raises NotFound, Invalid."""
    return _opened(_file(root, name), name)


def open_report(root: Path | str) -> BinaryIO:
    """The report, HTML. Raises NotFound."""
    return _opened(Path(root) / REPORT, "report")


def open_picture(root: Path | str, name: str) -> BinaryIO:
    """A picture, PNG. Raises NotFound, Invalid."""
    return _opened(_picture(root, name), f"picture {name}")


def listed(root: Path | str) -> tuple[Listed, ...]:
    """All results that can be read, by name."""
    found: list[Listed] = []
    for folder, prefix in ((Path(root), ""), (Path(root) / ANALYSES, ANALYSES)):
        for path in sorted(folder.glob("*.json")):
            name = prefix + path.stem
            try:
                with open_result(root, name) as file:
                    data = file.read(MAX_BYTES)
                head = _decoded(data, name, _Head)
            except (NotFound, Invalid):
                continue  # not one of ours, or just removed
            found.append(Listed(name, head.provenance, len(head.rows), len(data)))
    return tuple(sorted(found, key=lambda each: each.name))


def pictures(root: Path | str) -> tuple[str, ...]:
    """Names of the pictures."""
    return tuple(sorted(path.stem for path in (Path(root) / "pictures").glob("*.png") if _NAME.fullmatch(path.stem)))


def has_report(root: Path | str) -> bool:
    """Whether there is a report."""
    return (Path(root) / REPORT).is_file()


def _file(root: Path | str, name: str) -> Path:
    if not _PATH.fullmatch(name):
        raise Invalid(f"{name!r} is not the name of a result; write e.g. audit, or {ANALYSES}imbalance")
    return Path(root) / f"{name}.json"


def _picture(root: Path | str, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not the name of a picture; write e.g. imbalance")
    return Path(root) / "pictures" / f"{name}.png"


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        file = path.open("rb")
    except OSError:
        raise NotFound(f"there is no {name} here yet: run the job that makes it (loadmanager history --help)") from None
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        file.close()
        raise Invalid(f"{name} is above {MAX_BYTES:,} bytes: no job of this release wrote it")
    return file


def _decoded(data: bytes, name: str, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(data, type=_Formatted).format
        if found > FORMAT:
            raise Invalid(f"{name} is of format {found}, which a later release wrote; this one knows up to {FORMAT}")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{name} cannot be read: {error}; run the job again") from None


class _Formatted(msgspec.Struct):
    format: int


class _Head(msgspec.Struct):
    """A result with undecoded rows."""

    provenance: Provenance
    rows: list[msgspec.Raw]


def _write(path: Path, data: bytes) -> Path:
    if len(data) > MAX_BYTES:
        raise Invalid(f"{path.name} would have {len(data):,} bytes; at most {MAX_BYTES:,} are published")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # the broker may be another user
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
