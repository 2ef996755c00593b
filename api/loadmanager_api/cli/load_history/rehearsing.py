"""`--dry-run` of the jobs: checks what can be checked, and shows what would be read and written. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.load_history.answering import Rows, table
from loadmanager_api.cli.load_history.options import Job
from loadmanager_api.cli.load_history.running import published_in, reading, there, window_of
from loadmanager_api.cli.printing import echo, show_answer
from loadmanager_api.cli.stores import opened_log, working

if TYPE_CHECKING:
    from loadmanager.history.pinned import Pinned
    from loadmanager.settings import Settings

TABLES = ("table", "version", "rows", "columns missing")
TOPICS = ("topic", "partitions", "begin", "end", "in the lake", "to read", "tables")


def show_reading(job: Job, reads: Rows, writes: Sequence[Path]) -> None:
    """Show what a job would read, and which files it would write."""
    answer = {"dry_run": True, "reads": reads, "writes": [str(path) for path in writes]}
    if not job.shown.for_people:
        show_answer(job.shown, answer)
        return
    for columns in (TOPICS, TABLES):
        if rows := [row for row in reads if columns[0] in row]:
            table(job, answer, columns, rows)
            echo()
    if not reads:
        echo("there is nothing to read")
    echo(f"nothing was changed; without --dry-run the job would write{':' if writes else ' nothing'}")
    for path in writes:
        echo(f"  {path}")


def results(job: Job, names: Iterable[str]) -> list[Path]:
    """The files of results of these names, below the folder where they are published; none if there is no such."""
    root = published_in(job)
    return [] if root is None else [root / f"{name}.json" for name in names]


def tables_of(job: Job, lake: Pinned, names: Iterable[str]) -> Rows:
    """The version of each table that is there, its rows in the job's time, and columns that an older release left out.

    Raises Failed for a column of another type than this release reads.
    """
    return [_table_of(job, lake, name, version) for name, version in lake.versions(names).items()]


def _table_of(job: Job, lake: Pinned, name: str, version: int) -> dict[str, Any]:
    from loadmanager.history.schemas import TABLES

    stored = {field.name: field.dataType for field in lake.stored(name)}
    for field in TABLES[name].fields:
        if stored.get(field.name, field.dataType) != field.dataType:
            was, wanted = stored[field.name].simpleString(), field.dataType.simpleString()
            raise Failed(f"table {name} has {field.name} as {was}; this release reads {wanted}: ingest into a new lake")
    missing = [field for field in TABLES[name].names if field not in stored]
    rows = lake.table(name, window_of(job)).count()
    return {"table": name, "version": version, "rows": rows, "columns missing": ", ".join(missing) or None}


def topics_of(job: Job, settings: Settings, names: Iterable[str]) -> Rows:
    """How far each of these topics reaches, how far the lake has it, and how many records would be read at most.

    Spark starts only if there is a lake. Raises Failed.
    """
    known: Mapping[tuple[str, int], int] = {}
    if there(job):
        with reading(job) as lake:
            from loadmanager.history.ingest.progress import SILVER, reached
            from loadmanager.history.schemas import TABLES

            tables_of(job, lake, TABLES)
            known = reached(lake, SILVER).next_offsets
    return [_topic_of(name, *edges, known) for name, edges in working(_edges(settings, names)).items()]


def records_in(settings: Settings, names: Iterable[str]) -> int:
    """How many records the log has of these topics. Raises Failed, NotNow."""
    return sum(sum(ends) - sum(begins) for begins, ends in working(_edges(settings, names)).values())


async def _edges(settings: Settings, names: Iterable[str]) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    from loadmanager.history.sources import TOPICS, available, source_of
    from statechannel.ports import TopicSpec

    there = [name for name in available(source_of(settings)) if name in names]
    async with opened_log(settings) as log:
        for name in there:
            await log.open_topic(TopicSpec(name, compacted=TOPICS[name].compacted))
        return {name: (await log.begins(name), await log.ends(name)) for name in there}


def _topic_of(
    name: str, begins: Sequence[int], ends: Sequence[int], known: Mapping[tuple[str, int], int]
) -> dict[str, Any]:
    from loadmanager.history.sources import TOPICS

    has = [known.get((name, partition), 0) for partition in range(len(ends))]
    left = (end - max(begin, at) for begin, end, at in zip(begins, ends, has, strict=True))
    return {
        "topic": name,
        "partitions": len(ends),
        "begin": sum(begins),
        "end": sum(ends),
        "in the lake": sum(has),
        "to read": sum(max(0, count) for count in left),
        "tables": ", ".join(TOPICS[name].tables),
    }
