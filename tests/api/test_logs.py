"""A broker's log: one line for each event, as text or JSON, with the fields of its context and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmanager.errors import Conflict
from loadmanager.testing.cluster import embedded_cluster
from loadmanager_api.cli.broker import log_to
from tests.loadmanager.embedded import PATIENT, Host

WORD = "hunter2-canary"


class Talkative(Host):
    """A service that logs in its hooks, and whose `prepare` fails where it should."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    async def prepare(self, bundle: object) -> None:
        logging.getLogger("shop").info("warming up, password=%s", WORD)
        if self.failing:
            raise ValueError(f"no connection to http://user:{WORD}@store/")

    async def release(self, bundle: Any, to: object) -> bytes | None:
        del self.held[bundle]
        return None


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What a process with this form of log writes to standard error."""
    stream, root, kazoo = io.StringIO(), logging.getLogger(), logging.getLogger("kazoo")
    before, level, quiet = root.handlers[:], root.level, kazoo.level
    root.handlers[:] = []
    log_to(stream, request.param, verbose=False)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    kazoo.setLevel(quiet)


@pytest.mark.parametrize("written", ["json"], indirect=True)
async def test_lines_have_the_fields_of_what_they_are_about(written: io.StringIO, tmp_path: Path) -> None:
    async with embedded_cluster(Talkative, brokers=2, bundles=2, directory=tmp_path, **PATIENT) as cluster:
        bundle = cluster.bundles()[0]
        old = cluster.owner(bundle)
        assert old is not None
        (new,) = set(cluster.brokers) - {old}
        await cluster.transfer(bundle, new)
        cluster.host(old).failing = True
        with pytest.raises(Conflict):
            await new.ask(lambda node: node.current.operations.transfer(bundle, old.name))
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert all({"timestamp", "level", "logger", "event"} <= line.keys() for line in lines)
    started = [line for line in lines if "started as" in line["event"]]
    assert {(line["broker"], line["incarnation"]) for line in started} == {(b, 1) for b in (old.name, new.name)}
    (service, *_) = [line for line in lines if line["logger"] == "shop"]
    assert (service["bundle"], service["broker"]) == (str(bundle), new.name), "a line of the service's own"
    (failed, *_) = [line for line in lines if "no connection" in line["event"]]
    assert (failed["bundle"], failed["broker"]) == (str(bundle), old.name)
    assert WORD not in written.getvalue()


@pytest.mark.parametrize("written", ["json", "console"], indirect=True)
def test_an_exception_has_no_secrets_and_fakes_no_line(written: io.StringIO) -> None:
    try:
        int(f"password={WORD}\n2026-01-01 INFO faked")
    except ValueError:
        logging.getLogger("any.library").exception("it failed:\nERROR faked")
    text = written.getvalue()
    assert WORD not in text
    assert "ValueError" in text
    first, *_ = text.splitlines()
    assert "it failed:\\nERROR faked" in first
    if first.startswith("{"):
        assert json.loads(text)["logger"] == "any.library"


@pytest.mark.parametrize("written", ["console"], indirect=True)
def test_a_line_for_people_ends_with_its_fields(written: io.StringIO) -> None:
    import structlog

    with structlog.contextvars.bound_contextvars(bundle="t/n/0x0_0x1", broker="a:1"):
        logging.getLogger("loadmanager").warning("moved")
    assert written.getvalue().endswith(" WARNING loadmanager: moved [broker=a:1 bundle=t/n/0x0_0x1]\n")
