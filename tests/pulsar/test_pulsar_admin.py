"""The real pulsar-admin against our brokers: 73 commands, compared with what a real broker of Pulsar answered.

Compared are the tool's exit code, the status of each answer, and the shape of its body. Where brokers of the load
manager differ on purpose, `DIFFERENT` says how, and the table in docs/http.md says why.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from stack import jars
from tests.api.conftest import Cluster

pytestmark = [pytest.mark.release, pytest.mark.timeout(1_200)]

RECORDED = Path(__file__).with_name("recorded.json")
COMMAND_TIMEOUT_S = 120.0
THEIRS = ("127.0.0.1:28081", "127.0.0.1:28082", "127.0.0.1:28083")
FREE_FORM = (
    "get-runtime-config",
    "list-dynamic-config",
    "get-all-dynamic-config",
    "broker-stats",
    "brokers namespaces",
    "namespaces policies",
    "get-topic-positions",
)
"""Commands whose answer has names of settings, metrics, bundles or topics as keys: only its type is compared."""


class Differs(NamedTuple):
    """What is other than in the recording: the tool's exit code, and the status of the last answer."""

    exit: int
    status: int | None


_BUNDLE = "namespaces unload rec/ns1 --bundle"
_SPLIT = "namespaces split-bundle rec/ns1 --bundle 0x10000000_0x20000000 -san specified_positions_divide"
DIFFERENT: Mapping[str, Differs] = {
    "topics unload persistent://rec/ns1/none": Differs(0, 204),
    f"{_SPLIT} -sb 357913941 -sb 402653184": Differs(1, 409),
    f"{_BUNDLE} 0x00000000_0x00000001": Differs(1, 404),
    "broker-stats load-report": Differs(0, 200),
}
SAME_OWNER = f"{_BUNDLE} 0x00000000_0x40000000 --destinationBroker 127.0.0.1:28082"
"""Asked twice: the second time it is where it shall go, which is 500 in Pulsar, and 409 here."""


class Answer(NamedTuple):
    method: str
    path: str
    status: int
    body: Any


class Relay:
    """Passes requests on to a broker, and keeps the answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[Answer] = []

    async def handle(self, request: web.Request) -> web.Response:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "accept-encoding")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self._url + request.raw_path, data=await request.read(), headers=headers
            ) as answer,
        ):
            body = await answer.read()
            try:
                parsed = json.loads(body) if body else None
            except ValueError:
                parsed = body.decode()
            self.answers.append(Answer(request.method, request.path, answer.status, parsed))
            kind = {"Content-Type": answer.headers["Content-Type"]} if "Content-Type" in answer.headers else {}
            return web.Response(status=answer.status, body=body, headers=kind)


async def pulsar_admin(folder: Path, url: str, arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the tool."""
    configuration, logging = folder / "client.conf", folder / "log4j2.properties"
    configuration.write_text(f"webServiceUrl={url}/\nbrokerServiceUrl=pulsar://127.0.0.1:1/\n")
    logging.write_text("status=error\nrootLogger.level=off\n")
    tool = await asyncio.create_subprocess_exec(
        *(jars.java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *(f"-Dlog4j2.configurationFile={logging}", "-cp", jars.classpath("pulsar-admin")),
        *("org.apache.pulsar.admin.cli.PulsarAdminTool", str(configuration), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(tool.communicate(), COMMAND_TIMEOUT_S)
    return tool.returncode or 0, out.decode(), err.decode()


def shape(value: Any, depth: int = 0) -> Any:
    """The types in a value, as in the recording."""
    match value:
        case dict():
            return {k: shape(v, depth + 1) for k, v in value.items()} if depth < 2 and len(value) < 30 else {}
        case list():
            return [shape(value[0], depth + 1)] if value else []
        case _:
            return type(value).__name__


def is_like(theirs: Any, ours: Any, *, free: bool) -> bool:
    """Whether our body has all that theirs has, in the same types; more fields do no harm."""
    if free and isinstance(ours, dict | list):
        return True
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return all(name in ours and is_like(theirs[name], ours[name], free=False) for name in theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return not theirs or not ours or is_like(theirs[0], ours[0], free=False)
    return theirs == ours or (theirs, ours) in (("int", "float"), ("float", "int"))


async def test_the_tool_works_as_against_pulsar(cluster: Cluster, tmp_path: Path) -> None:
    await asyncio.to_thread(jars.classpath, "pulsar-admin")
    await cluster.start(3, cluster="peer", split=False, merge=False)
    relay = Relay(cluster.brokers[0].url)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", relay.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    wrong: list[str] = []
    seen: set[str] = set()
    try:
        for recorded in json.loads(RECORDED.read_text(encoding="utf-8"))["commands"]:
            command = recorded["command"]
            told = command
            for theirs, broker in zip(THEIRS, cluster.brokers, strict=True):
                told = told.replace(theirs, broker.name)
            relay.answers.clear()
            code, _out, err = await pulsar_admin(tmp_path, url, shlex.split(told))
            differs = DIFFERENT.get(command)
            seen |= {command} & DIFFERENT.keys()
            wanted = _wanted(recorded, differs)
            found = [answer for answer in relay.answers if not answer.path.endswith("/runtime") or "runtime" in command]
            statuses = [answer.status for answer in found]
            if (code, statuses) != wanted:
                wrong.append(f"{command}: {(code, statuses)}, not {wanted}: {[a.body for a in found]} {err[-300:]}")
                continue
            for theirs, answer in zip(recorded["requests"], found, strict=False):
                free = any(name in command for name in FREE_FORM)
                if (
                    answer.status < 300
                    and differs is None
                    and not is_like(theirs["shape"], _shape_of(answer.body), free=free)
                ):
                    wrong.append(f"{command}: {shape(answer.body)} is not like {theirs['shape']}")
    finally:
        await runner.cleanup()
    assert not wrong, "\n".join(wrong)
    assert seen == set(DIFFERENT), "these do not differ any more, or are no commands"


def _shape_of(body: Any) -> Any:
    return None if body is None else shape(body)


def _wanted(recorded: Mapping[str, Any], differs: Differs | None) -> tuple[int, list[int]]:
    statuses = [request["status"] for request in recorded["requests"]]
    if recorded["command"] == SAME_OWNER and statuses == [500]:
        return recorded["exit"], [409]
    if differs is None:
        return recorded["exit"], statuses
    return differs.exit, [*statuses[:-1], *([] if differs.status is None else [differs.status])]
