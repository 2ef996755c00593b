"""`loadmanager sidecar` as a process: who may ask it what, and what probes see."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from loadmanager.errors import Invalid
from loadmanager.sidecar.wire import Secret
from stack.process import Child
from stack.servers import free_port
from tests.integration.long_life.waiting import until_told
from tests.sidecar.stage import CLI

START_S = 60.0


class Asked:
    """A sidecar's endpoints, with the secret or another one."""

    def __init__(self, http: aiohttp.ClientSession, control: str, broker: str, secret: Path) -> None:
        self.http, self.control, self.broker, self.secret = http, control, broker, secret

    async def __call__(self, method: str, path: str, body: object = None, secret: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {secret or self.secret.read_text().strip()}"}
        async with self.http.request(method, f"http://{self.control}{path}", json=body, headers=headers) as answer:
            self.headers = answer.headers
            return answer.status, await answer.json(content_type=None)

    async def probe(self, what: str) -> int:
        async with self.http.get(f"http://{self.broker}/admin/v2/brokers/{what}") as answer:
            return answer.status


@asynccontextmanager
async def sidecar(directory: Path, *more: str) -> AsyncGenerator[Asked]:
    """A sidecar without a service."""
    control, broker, secret = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", directory / "secret"
    options = ["--log", f"sqlite:{directory}/log.db", "--advertised", broker, "--control", control]
    log = directory / "sidecar.log"
    child = Child([*CLI, "sidecar", *options, "--secret-file", str(secret), *more], log, {})
    try:
        async with aiohttp.ClientSession() as http:
            asked = Asked(http, control, broker, secret)
            await until_told(lambda: up(asked, child), "the sidecar is up", START_S)
            yield asked
    finally:
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, START_S), log.read_text()


async def up(asked: Asked, child: Child) -> bool:
    assert child.running()
    try:
        return (await asked("GET", "/openapi.json"))[0] == 200
    except (aiohttp.ClientError, OSError):
        return False


@asynccontextmanager
async def service() -> AsyncGenerator[str]:
    """The URL of a service that does whatever hooks ask for."""

    async def hook(request: web.Request) -> web.Response:
        return web.json_response({"hand_off": None, "loads": []})

    app = web.Application()
    app.router.add_post("/", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


BAD: dict[str, tuple[dict[str, object], int, str]] = {
    "hooks that others reach": ({"hooks": "http://10.0.0.1:9000/"}, 400, "loopback"),
    "hooks without a port": ({"hooks": "http://127.0.0.1/"}, 400, "a port"),
    "hooks over TLS": ({"hooks": "https://127.0.0.1:9000/"}, 400, "http://"),
    "an unknown protocol": ({"protocol": 2}, 422, "knows protocol 1, not 2"),
    "an unknown offer": ({"offers": ["fly"]}, 400, "offers"),
    "an unknown field": ({"hook": "x"}, 400, "there is no such field"),
}


async def test_what_a_service_may_not_ask_is_refused_and_changes_nothing(tmp_path: Path):
    good = {"protocol": 1, "hooks": "http://127.0.0.1:9/"}
    async with sidecar(tmp_path) as asked:
        assert (await asked.probe("live"), await asked.probe("health")) == (200, 503)
        for why, (wrong, status, told) in BAD.items():
            found, body = await asked("POST", "/v1/session", good | wrong)
            assert (found, told in body["detail"]) == (status, True), (why, body)
        for method, path in (("POST", "/v1/session"), ("GET", "/v1/session/x/lease"), ("GET", "/v1/claims/a%2Fb%2Fc")):
            assert (await asked(method, path, good, secret=Secret.new().text))[0] == 401
        assert (await asked("GET", "/v1/session/x/lease"))[0] == 410
        assert (await asked("GET", "/v1/claims/a%2Fb%2Fc"))[0] == 503


@pytest.mark.slow
async def test_one_service_at_a_time_is_a_member(tmp_path: Path):
    async with service() as hooks, sidecar(tmp_path, "--url", "http=http://10.0.0.1:9000") as asked:
        status, attached = await asked("POST", "/v1/session", {"protocol": 1, "hooks": hooks, "urls": {"x": "y://z"}})
        assert (status, attached["broker"]) == (201, asked.broker)
        path = f"/v1/session/{attached['session']}"

        async def joined() -> bool:
            return (await asked("GET", f"{path}/lease"))[1]["state"] == "joined"

        await until_told(joined, "the broker is a member", START_S)
        assert (await asked("GET", f"{path}/lease"))[1]["valid_ms"].keys() >= {"0"}
        assert await asked.probe("health") == 200
        status, problem = await asked("POST", "/v1/session", {"protocol": 1, "hooks": "http://127.0.0.1:9/"})
        assert (status, asked.headers["Retry-After"]) == (409, "1")
        assert "another session" in problem["detail"]
        assert (await asked("GET", "/v1/claims/a%2Fb%2Fc"))[0] == 404
        polling = asyncio.create_task(_poll(asked, path))
        assert (await asked("DELETE", path))[0] == 200
        await polling

        async def absent() -> bool:
            return await asked.probe("live") == 200 and await asked.probe("health") == 503

        await until_told(absent, "probes see that there is no service", START_S)


async def test_a_service_that_attaches_again_ends_its_former_session(tmp_path: Path):
    attachment = {"protocol": 1}
    async with service() as hooks, sidecar(tmp_path) as asked:
        attachment |= {"hooks": hooks}
        _, former = await asked("POST", "/v1/session", attachment)
        assert (await asked("POST", "/v1/session", attachment))[0] == 409
        assert (await asked("GET", f"/v1/session/{former['session']}/lease"))[0] == 410

        async def attached() -> bool:
            return (await asked("POST", "/v1/session", attachment))[0] == 201

        await until_told(attached, "it is attached again", START_S)


async def _poll(asked: Asked, path: str) -> None:
    while (await asked("GET", f"{path}/lease"))[0] == 200:
        pass


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--control", "0.0.0.0:7070"], "--control 0.0.0.0:7070 can be reached by others"),
        (["--advertised", "10.0.0.7:8080"], "10.0.0.7:8080 can be reached from other machines"),
        (["--secret-file", "{bad}"], "bad has no secret"),
    ],
)
async def test_a_sidecar_that_cannot_be_safe_says_why_and_ends(tmp_path: Path, options: list[str], told: str):
    (tmp_path / "bad").write_text("secret")
    given = ["--log", f"sqlite:{tmp_path}/log.db", "--secret-file", str(tmp_path / "secret")]
    command = [*given, *(part.format(bad=tmp_path / "bad") for part in options)]
    process = await asyncio.create_subprocess_exec(*CLI, "sidecar", *command, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert (process.returncode, told in errors.decode()) == (1, True), errors.decode()


def test_a_secret_is_made_once_and_only_for_its_group(tmp_path: Path):
    made = Secret.of(tmp_path / "secret")
    assert Secret.of(tmp_path / "secret").text == made.text
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
    with pytest.raises(Invalid):
        Secret("whsec_c2hvcnQ=")
