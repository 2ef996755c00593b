"""The log of a broker process on standard error: lines for people, or one JSON object a line.

All code logs through `logging`, our libraries too; one formatter renders everything. Fields come from the context in
which a line was logged: broker, incarnation, bundle (in hooks, so in the service's own lines as well), cause (in rounds
of balancing), principal (in requests), trace (in hooks and rounds, if there are traces). No line has secrets, or
characters that a terminal obeys.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

import structlog

from loadmanager.diagnostics.doctor.hiding import hide
from loadmanager_api.cli.echoing import one_line, visible

FIELDS = ("broker", "incarnation", "bundle", "cause", "principal", "trace")
"""Fields that lines of ours may have besides timestamp, level, logger, event and exception, in this order."""


def log_to(stream: TextIO, form: str, *, verbose: bool) -> None:
    """Write the process's log to this stream, in the form `console` or `json`, until this is called again."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    if not verbose:  # it logs each attempt to connect; our own adapter logs what matters
        logging.getLogger("kazoo").setLevel(logging.ERROR)


def log_to_stderr(form: str, *, verbose: bool) -> None:
    """As `log_to`, for standard error."""
    log_to(sys.stderr, form, verbose=verbose)


def formatter(form: str) -> logging.Formatter:
    """The formatter for `console` or `json`."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _hidden,
            _json if form == "json" else _console,
        ],
    )


def _hidden(_logger: object, _method: str, event: Any) -> Any:
    return hide(dict(event))


def _json(_logger: object, _method: str, event: Any) -> str:
    return json.dumps(dict(event), default=str)


def _console(_logger: object, _method: str, event: Any) -> str:
    """One line, with the fields in brackets; an exception follows on lines of its own."""
    fields = " ".join(f"{name}={event[name]}" for name in FIELDS if name in event)
    line = f"{event['timestamp']} {event['level'].upper()} {event['logger']}: {event['event']}"
    exception = f"\n{visible(event['exception'])}" if "exception" in event else ""
    return one_line(f"{line} [{fields}]" if fields else line) + exception
