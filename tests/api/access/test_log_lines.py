"""Lines of a broker's log that a request caused name its principal; others do not."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadmanager_api.cli.broker import formatter
from tests.api.access.conftest import Guarded


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """The lines of the load manager's log in this block, as JSON has them; they are there at its end."""
    stream, lines, logger = io.StringIO(), list[dict[str, Any]](), logging.getLogger("loadmanager")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("json"))
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_what_a_request_caused_names_its_principal(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "loadmanager")
    with logged() as lines:
        await guarded.start()
        status, _, _ = await guarded.ask("root", "PUT", "/admin/v2/namespaces/t/n")
        assert status < 300
    (entry,) = [line for line in lines if line["logger"] == "loadmanager.audit"]
    assert entry["principal"] == "root"
    started = [line for line in lines if "started as" in line["event"]]
    assert started
    assert not [line for line in started if "principal" in line]


async def test_requests_at_one_time_do_not_get_mixed_up(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "loadmanager")
    who, others = ([f"{what}-{number}" for number in range(8)] for what in ("operator", "guest"))
    await guarded.start(superusers=",".join(who))
    with logged() as lines:
        await asyncio.gather(
            *(guarded.ask(name, "PUT", f"/admin/v2/namespaces/t/{name}") for name in who),
            *(guarded.ask(name, "GET", "/v1/notes") for name in others),
        )
        await guarded.cluster.until(lambda: sum(r.name == "loadmanager.audit" for r in caplog.records) == 16)
    entries = [line for line in lines if line["logger"] == "loadmanager.audit"]
    assert {line["principal"] for line in entries} == {*who, *others}
    assert all(json.loads(line["event"])["principal"] == line["principal"] for line in entries)
