"""Times on the command line: `--from -7d --to 2030-01-31T12:00`. UTC where nothing else is said."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from loadmanager_api.cli.options import ParamType

_AGO = re.compile(r"-?([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(ParamType[datetime]):
    """`-7d`, `-90m` (before now), `now`, or ISO 8601: `2030-01-31`, `2030-01-31T12:00`, `…+02:00`. Aware, in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        if value == "now":
            return now
        try:
            ago = _AGO.fullmatch(value)
            if ago is not None:
                return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; write -7d, -90m, now, or 2030-01-31T12:00 (UTC)", param, ctx)


def check_order(begin: datetime | None, end: datetime | None) -> None:
    """Raises UsageError if there is no time between them."""
    if begin is not None and end is not None and begin >= end:
        raise click.UsageError(
            f"--from {begin:%Y-%m-%dT%H:%M:%S} is not before --to {end:%Y-%m-%dT%H:%M:%S}: exchange them"
        )
