"""`loadmanager history sql`: answers a question in SQL about a lake.

With DuckDB for a lake on this disk: no JVM starts. With Spark for any lake.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import click

from loadmanager.errors import Invalid, NotFound
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.command_group import with_nearest
from loadmanager_api.cli.load_history.jobs import (
    Job,
    Rows,
    check_lake,
    engine_option,
    installed,
    job_of,
    lake_options,
    opened,
    table,
    takes_duckdb,
)
from loadmanager_api.cli.options import FORMS
from loadmanager_api.cli.printing import echo
from loadmanager_api.cli.remote import Typed

CSV = "csv"
MOST = 1_000
_UNKNOWN = re.compile(r"(?:Table|View) with name \"?([^\"\n]{1,200}?)\"? does not exist")


@click.command()
@click.argument("query", required=False, metavar="[SQL]")
@lake_options
@engine_option
@click.option(
    "--list", "listing", is_flag=True, help="List the views; with a view or table in place of SQL, its columns."
)
@click.option(
    "--rows", type=click.IntRange(1), metavar="N", default=MOST, show_default=True, help="Number of rows to print."
)
@click.option(
    "-o", "--output", type=click.Choice((*FORMS, CSV)), help="Print a table, JSON, YAML or CSV.  [default: table]"
)
@click.pass_context
def sql(
    ctx: click.Context, query: str | None, engine: str, listing: bool, rows: int, output: str | None, **place: Any
) -> None:
    """Answer a question in SQL about the lake; - in place of SQL reads it from standard input.

    The SQL is the engine's. It sees the lake's tables, and views whose names say what is in them: --list. It only
    reads. All times are UTC.

    DuckDB opens no other file. Spark refuses a file in place of a table (text.`/etc/passwd`), but sees the tables of
    its catalogue, and functions such as java_method run code in its JVM: give Spark no question that you do not trust.
    """
    form = output or (ctx.find_object(Typed) or Typed()).output or "table"
    job = job_of(**place, output="json" if form == CSV else form)
    if listing:
        _list(job, form, query)
        return
    if not query:
        raise click.UsageError("say what to ask: loadmanager history sql 'SELECT …', or --list for the views")
    if not job.lake:
        raise click.MissingParameter(param_hint="'--lake'", param_type="option")
    asked = sys.stdin.read() if query == "-" else query
    answer = _answer if takes_duckdb(job, engine) else _answer_of_spark
    names, found, more = answer(job, asked, rows)
    _show(job, form, names, found)
    if more:
        echo(f"… and more rows: --rows {10 * rows} prints up to so many", err=True)


def _list(job: Job, form: str, name: str | None) -> None:
    from loadmanager.history.columns import TABLES
    from loadmanager.history.views import VIEWS

    if name is None:
        found = [{"view": view.name, "a row is": view.title.rstrip(".")} for view in VIEWS.values()]
        _show(job, form, ("view", "a row is"), found)
    elif name in VIEWS:
        columns = [{"column": column, "meaning": text} for column, text in VIEWS[name].columns.items()]
        _show(job, form, ("column", "meaning"), columns)
    elif name in TABLES:
        _show(job, form, ("column", "type"), [{"column": each, "type": kind} for each, kind in TABLES[name].items()])
    else:
        raise Failed(_not_there(name))


def _answer_of_spark(job: Job, query: str, most: int) -> tuple[Sequence[str], Rows, bool]:
    """As `_answer`. As a subquery, so that it can only select."""
    with opened(job) as lake:
        from loadmanager.history.session import tables_alone
        from loadmanager.history.views import register

        register(lake)
        with tables_alone(lake.spark):
            table = lake.spark.sql(f"SELECT * FROM (\n{query.strip().rstrip(';')}\n)").limit(most + 1).toArrow()
        rows = list(zip(*(column.to_pylist(maps_as_pydicts="lossy") for column in table.columns), strict=True))
    return *_named(table.column_names, rows[:most]), len(rows) > most


def _answer(job: Job, query: str, most: int) -> tuple[Sequence[str], Rows, bool]:
    """Columns, at most so many rows, and whether there are more. Raises Failed."""
    root = job.local
    assert root is not None
    check_lake(job, new=False)
    with installed():
        from loadmanager.history.duck import asks_only, connected
    with tempfile.TemporaryDirectory(prefix="loadmanager-sql-") as scratch, _failing():
        if not asks_only(query):
            raise Failed("this command takes one question: SELECT, FROM, WITH, DESCRIBE or SUMMARIZE …")
        with connected(root.absolute(), Path(scratch), query) as db:
            answer = db.execute(query)
            names = [str(each[0]) for each in answer.description or ()]
            rows = answer.fetchmany(most + 1)
            return *_named(names, rows[:most]), len(rows) > most


def _named(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], Rows]:
    """Each column under a name of its own."""
    unique = [name if names.index(name) == place else f"{name}_{place}" for place, name in enumerate(names)]
    return unique, [dict(zip(unique, row, strict=True)) for row in rows]


@contextmanager
def _failing() -> Generator[None]:
    """DuckDB's errors as a message that says what to do."""
    import duckdb

    try:
        yield
    except (NotFound, Invalid) as error:
        raise Failed(str(error)) from None
    except duckdb.PermissionException as error:
        raise Failed(f"this command reads the tables of the lake, and no other file: {error}") from None
    except duckdb.CatalogException as error:
        unknown = _UNKNOWN.search(str(error))
        raise Failed(_not_there(unknown[1]) if unknown else str(error)) from None
    except duckdb.OutOfMemoryException as error:
        raise Failed(
            f"the question needs more memory than there is; ask about fewer days, or use Spark: {error}"
        ) from None
    except duckdb.Error as error:
        raise Failed(str(error)) from None


def _not_there(name: str) -> str:
    from loadmanager.history.columns import TABLES
    from loadmanager.history.views import VIEWS

    message = f"there is no view or table {name}; `loadmanager history sql --list` lists the views"
    return with_nearest(message, name, [*VIEWS, *TABLES])


def _show(job: Job, form: str, names: Sequence[str], rows: Rows) -> None:
    if form == CSV:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_plain(row[name]) for name in names] for row in rows])
        echo(text.getvalue(), nl=False)
    elif job.shown.for_people:
        shown = [
            {name: value if isinstance(value, datetime) else _plain(value) for name, value in row.items()}
            for row in rows
        ]
        table(job, None, names, shown, "no rows")
    else:
        table(job, [{name: _plain(value) for name, value in row.items()} for row in rows], names, rows)


def _plain(value: Any) -> Any:
    """What JSON can hold: times in ISO 8601, bytes as hexadecimal digits, null for what is not a number."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date() | time() | timedelta():
            return str(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _plain(each) for name, each in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(each) for each in cast("list[Any]", value)]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)
