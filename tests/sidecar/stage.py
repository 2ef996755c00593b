"""Pairs of a sidecar and a service as processes, under load, with a supervisor that starts again what was killed.

Each service is watched from outside as well: once a key was answered under a token, nobody answers a later request for
it under a lower one. Its storage refuses late writes by itself; only reads show a service that serves for too long.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import msgspec

from loadmanager.demo.counter.load import Snapshot
from loadmanager.demo.stage import Child as DemoChild
from stack.process import Child
from stack.servers import HOST, free_port
from statechannel.law.bundle import Bundle, even_boundaries, tile
from tests.integration.long_life.waiting import until, until_told

NAMESPACE = "demo/counters"
BUNDLES = tile(NAMESPACE, even_boundaries(12))
RATE_S = 40
BUDGET_S = 60
"""For a request: a failure is one that nobody answers, not one that waits for a dead owner's bundles."""
CLI = (sys.executable, "-c", "from loadmanager_api.cli.main import main; main()")
LOOK_S = 0.02
ASK_S = 10.0
WATCH_S = 0.1
ENDS_S = 30.0
STARTS_S = 150.0
SERVED_WITHIN_S = 90.0


def key_of(bundle: Bundle) -> str:
    """A key of the bundle, that the load does not use."""
    names = (f"{NAMESPACE}/seen-{number}" for number in range(10_000))
    return next(name for name in names if crc32(f"persistent://{name}".encode()) in bundle)


KEYS = {bundle: key_of(bundle) for bundle in BUNDLES}


class Pair:
    """One sidecar and its service."""

    def __init__(
        self, number: int, directory: Path, options: Sequence[str], command: Sequence[str], store: str
    ) -> None:
        self.broker, control, listen = (f"{HOST}:{free_port()}" for _ in range(3))
        self.url = f"http://{listen}"
        secret = directory / f"{number}.secret"
        self.commands = {
            "sidecar": [
                *(*CLI, "sidecar", "--advertised", self.broker, "--control", control),
                *("--secret-file", str(secret), *options),
            ],
            "service": command,
        }
        self.environment = {
            "LOADMANAGER_SIDECAR": f"http://{control}",
            "LOADMANAGER_SIDECAR_SECRET_FILE": str(secret),
            "COUNTERS_STORE": store,
            "LISTEN": listen,
        }
        self.logs = {part: directory / f"{number}.{part}.log" for part in self.commands}
        self.children: dict[str, Child] = {}
        self.starts = dict.fromkeys(self.commands, 0)

    def start(self, part: str) -> None:
        """Start the sidecar or the service."""
        environment = self.environment if part == "service" else {}
        self.children[part] = Child(self.commands[part], self.logs[part], environment)
        self.starts[part] += 1

    def tail(self) -> str:
        """The end of both logs."""
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in self.logs.values())


class Stage:
    """Use `staged`."""

    def __init__(self, pairs: Sequence[Pair], http: aiohttp.ClientSession) -> None:
        self.pairs = pairs
        self._http = http
        self.too_late: list[str] = []
        """Answers under a token lower than one that had answered before."""
        self._highest: dict[str, str] = {}

    # --- processes

    async def supervise(self) -> None:
        """Start again at once whatever has ended, as a kubelet does."""
        while True:
            for pair in self.pairs:
                for part, child in list(pair.children.items()):
                    if not child.running():
                        pair.start(part)
            await asyncio.sleep(LOOK_S)

    async def replaced(self, pair: Pair, *parts: str) -> None:
        """Return when the supervisor has started these again."""
        begun = {part: pair.starts[part] for part in parts}
        for part in parts:
            await until(lambda part=part: pair.starts[part] > begun[part], f"{part} is started again")

    async def kill(self, pair: Pair, *parts: str) -> None:
        """SIGKILL; return when they are started again."""
        for part in parts:
            pair.children[part].signal(signal.SIGKILL)
        await self.replaced(pair, *parts)

    async def end(self) -> None:
        """End all processes."""
        for pair in self.pairs:
            for child in pair.children.values():
                child.signal(signal.SIGCONT)
                child.signal(signal.SIGKILL)
        for pair in self.pairs:
            for child in pair.children.values():
                await asyncio.to_thread(child.wait, ENDS_S)

    # --- asking

    async def ask(self, method: str, url: str, body: object = None) -> tuple[int, Any, str]:
        """Status (0: none came), body, token."""
        try:
            async with self._http.request(method, url, json=body, allow_redirects=False) as answer:
                text = await answer.read()
                is_json = answer.content_type.endswith("json") and bool(text)
                token = answer.headers.get("Fencing-Token", "")
                return answer.status, msgspec.json.decode(text) if is_json else text.decode(), token
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, repr(error), ""

    async def token_of(self, pair: Pair, key: str) -> str:
        """The token under which this service answers for a key, "" if it does not; notes answers that came too late."""
        known = self._highest.get(key, "")
        status, _, token = await self.ask("GET", f"{pair.url}/v1/counters?topic={key}")
        if status != 200:
            return ""
        if token < known:
            self.too_late.append(f"{pair.broker} answered {key} under {token}; {known} had answered before")
        self._highest[key] = max(token, self._highest.get(key, ""))
        return token

    async def watch(self, pair: Pair) -> None:
        """Ask one service all the time."""
        keys = list(KEYS.values())[::4]
        while True:
            for key in keys:
                await self.token_of(pair, key)
                await asyncio.sleep(WATCH_S)

    async def owners(self, asked: Sequence[Pair]) -> dict[Bundle, Pair | None]:
        """Whom the first of these brokers that answers takes for the owners."""
        for pair in asked:
            status, body, _ = await self.ask("GET", f"http://{pair.broker}/v1/bundles?namespace={NAMESPACE}&limit=1000")
            if status == 200:
                by_name = {each.broker: each for each in self.pairs}
                return {
                    Bundle.parse(row["bundle"]): by_name.get(row["owner"]) if row["owner_live"] else None
                    for row in body["bundles"]
                }
        return {}

    async def serves(self, pair: Pair, bundle: Bundle) -> bool:
        """Whether this service itself answers for the bundle."""
        return await self.token_of(pair, KEYS[bundle]) != ""

    async def held_by(self, pair: Pair) -> dict[Bundle, str]:
        """The bundles that a service serves, each with its token."""
        owned = [bundle for bundle, owner in (await self.owners(self.pairs)).items() if owner is pair]
        tokens = {bundle: await self.token_of(pair, KEYS[bundle]) for bundle in owned}
        served = {bundle: token for bundle, token in tokens.items() if token}
        assert served, f"{pair.broker} has no bundles"
        return served

    async def all_served(self, by: Sequence[Pair], before: Mapping[Bundle, str] | None = None) -> None:
        """Return when each bundle is served by one of these services, under a token higher than before."""
        missing = set(BUNDLES)

        async def none_missing() -> bool:
            owners = await self.owners(by)
            for bundle in list(missing):
                owner = owners.get(bundle)
                if owner is None or owner not in by:  # nobody's, or a dead one's: whoever asks for it has it assigned
                    await self.ask("GET", f"{by[0].url}/v1/counters?topic={KEYS[bundle]}")
                elif await self.token_of(owner, KEYS[bundle]) > (before or {}).get(bundle, ""):
                    missing.discard(bundle)
            return not missing

        try:
            await until_told(none_missing, "all bundles are served", SERVED_WITHIN_S)
        except AssertionError as error:
            told = "\n".join(pair.tail() for pair in self.pairs)
            raise AssertionError(f"{error}; not served: {[str(bundle) for bundle in missing]}\n{told}") from None

    async def move(self, bundle: Bundle, to: Pair, asked: Pair | None = None) -> None:
        """Transfer a bundle; return when its service serves it."""
        at = f"http://{(asked or to).broker}/admin/v2/namespaces/{NAMESPACE}/{bundle.range}"

        async def arrived() -> bool:
            if await self.serves(to, bundle):
                return True
            await self.ask("PUT", f"{at}/unload?destinationBroker={to.broker}")
            return await self.serves(to, bundle)

        await until_told(arrived, f"{bundle} is served by {to.broker}", SERVED_WITHIN_S)


class Load:
    """The load generator, as a process."""

    def __init__(self, child: DemoChild) -> None:
        self._child = child
        self._last = Snapshot(0, 0, 0, 0, 0, 0, 0, 0)
        self._hearing = asyncio.create_task(child.hear(self._heard))

    def _heard(self, line: bytes) -> None:
        self._last = msgspec.json.decode(line, type=Snapshot)

    async def goes_on(self, more: int = 2 * RATE_S) -> None:
        """Return when so many further requests were answered."""
        wanted = self._last.ok + more
        await until(lambda: self._last.ok >= wanted, f"{more} more requests are answered")

    async def settle(self) -> Snapshot:
        """End it in order: all requests are answered or have failed, and the store is audited."""
        self._child.close_input()
        async with asyncio.timeout(2 * BUDGET_S):
            await self._hearing
        return self._last

    def kill(self) -> None:
        self._child.kill()


@asynccontextmanager
async def loaded(stage: Stage, store: str, directory: Path) -> AsyncGenerator[Load]:
    """Increments at a steady rate while the context is open."""
    admin = [part for pair in stage.pairs for part in ("--admin", f"http://{pair.broker}")]
    options = [*admin, "--store", store, "--json", "--rate", str(RATE_S), "--budget", str(BUDGET_S), "--topics", "100"]
    options += ["--in-flight", str(RATE_S)]  # a machine that is slow for a time is not flooded with what it missed
    child = await DemoChild.start("loadmanager.demo.counter.load", options, errors=directory / "load.err")
    load = Load(child)
    try:
        yield load
    finally:
        load.kill()
        await child.wait()


@asynccontextmanager
async def staged(
    directory: Path, command: Sequence[str], options: Sequence[str], store: str, pairs: int = 3
) -> AsyncGenerator[Stage]:
    """Pairs of a sidecar and the service that the command starts; all bundles are served."""
    timeout = aiohttp.ClientTimeout(total=ASK_S, sock_connect=1.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        stage = Stage([Pair(number, directory, options, command, store) for number in range(pairs)], http)
        tasks = list[asyncio.Task[None]]()
        try:
            for pair in stage.pairs:
                for part in pair.commands:
                    pair.start(part)
            tasks.append(asyncio.create_task(stage.supervise()))
            await _namespace(stage)
            await stage.all_served(stage.pairs)
            tasks += [asyncio.create_task(stage.watch(pair)) for pair in stage.pairs]
            yield stage
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await stage.end()


async def _namespace(stage: Stage) -> None:
    """Create it as soon as a broker is there, and wait until all are."""
    url = f"http://{stage.pairs[0].broker}/admin/v2/namespaces/{NAMESPACE}"

    async def created() -> bool:
        return (await stage.ask("PUT", url, {"numBundles": len(BUNDLES)}))[0] in {204, 409}

    async def whole() -> bool:
        status, body, _ = await stage.ask("GET", f"http://{stage.pairs[0].broker}/admin/v2/brokers/standalone")
        return status == 200 and len(body) == len(stage.pairs)

    try:
        await until_told(created, "a broker takes a namespace", STARTS_S)
        await until_told(whole, "all brokers are members", STARTS_S)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(pair.tail() for pair in stage.pairs)])) from None


def took(what: str, begun_s: float) -> None:
    """Print how long something took."""
    print(f"{what}: {time.monotonic() - begun_s:.1f} s")
