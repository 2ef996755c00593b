"""A small service of the contract `docs/sidecar.md`, alone with aiohttp, and bugs that can be put into it.

    python reference.py [--bug NAME]

`GET /keys?key=demo%2Fcounters%2Fapples` answers 200 while the key is served here; `GET /slow?key=…` the same after
more than a second. It takes any free port, and says it to its sidecar.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import signal
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, web

BUGS = {
    "asks without the secret": "attaches without the secret at first",
    "attaches once": "does not attach again after 409",
    "polls twice": "has two polls under way",
    "counts from the answer": "adds valid_ms to the clock as it is when the answer is there",
    "one deadline": "has one deadline for all partitions",
    "keeps partitions": "leaves the deadline of a partition that an answer does not name",
    "no deadline": "serves while no answer says otherwise",
    "its clock stands": "counts time by a clock that stands while the process is stopped",
    "ignores orders": "does not read `abandon` in leases",
    "ignores sequences of orders": "takes each order of a lease for a new one",
    "declines late hooks": "answers 409 to an abandon that a lease named before",
    "ignores shared": "does not read `shared` in leases",
    "shared for ever": "remembers namespaces that were shared",
    "keeps bundles": "keeps its bundles after 410",
    "keeps bundles under a new secret": "keeps its bundles after 401",
    "reads the secret once": "does not read the file again after 401",
    "ends with its sidecar": "ends when there is no sidecar",
    "no signature": "does not look at signatures",
    "body not signed": "signs only id and timestamp",
    "any time": "does not look at the timestamp",
    "ignores sequences": "takes each hook for a new one",
    "forgets sequences": "forgets a bundle's sequence with the bundle",
    "ignores sessions": "takes hooks of any session",
    "declines repeats": "answers 409 to a repeated acquire",
    "releases anew": "answers a repeated release as if it was a first one",
    "late acquire": "serves a bundle that was abandoned while it was loaded",
    "declines unknown abandon": "answers 404 to an abandon of a bundle that it does not have",
    "declines unknown release": "the same of a release",
    "keeps on abandon": "serves on after an abandon",
    "keeps on release": "serves on after a release",
    "needs a hand_off": "declines an acquire without hand_off of a bundle that another one had",
    "refuses hand_off": "declines an acquire with hand_off",
    "no fence": "does not remember tokens",
    "loads all": "names bundles in `load` that it has released",
    "loads no field": "gives loads fields that there are not",
    "positions elsewhere": "answers `positions` with hi",
    "negative rates": "answers `rates` with a negative one",
    "hi inclusive": "takes lo ≤ position ≤ hi",
    "lo exclusive": "takes lo < position < hi",
    "last is short": "takes hi for 32 bits",
    "no redirect": "answers 404 to keys that it does not have",
    "no urls": "leaves urls out of a redirect",
    "no retry-after": "leaves Retry-After out",
    "does not wait": "does not ask again after a claim was answered",
    "any cluster": "does not look at Loadmanager-Cluster",
    "one identity": "refuses all but the text of its own cluster, and does not say which that is",
    "no token": "answers without Fencing-Token",
    "first token": "keeps the token of the first acquire",
    "release does not wait": "answers a release while requests are in progress",
    "prepare serves": "takes prepare for acquire",
    "stops at once": "serves nothing after SIGTERM",
    "no delete": "exits without ending its session",
    "lingers": "does not exit",
    "exits with 1": "exits with 1",
}
LOAD_S = 0.02
LONG_LOAD_S = 0.2
SLOW_S = 1.1
HAND_OFF = b"\x00what is in memory"
TOLERANCE_S = 300


@dataclass
class Held:
    """A bundle, from the beginning of its acquire on."""

    lo: int
    hi: int
    partition: int
    token: str
    serving: bool = False
    in_progress: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Refused(Exception):
    """A hook is not obeyed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Service:
    def __init__(self, bug: str) -> None:
        self.bug = bug
        self.url = os.environ["LOADMANAGER_SIDECAR"]
        self.secret = self.read_secret()
        self.session = ""
        self.held: dict[str, Held] = {}
        self.sequences: dict[str, tuple[int, asyncio.Future[tuple[int, object]]]] = {}
        self.fences: dict[tuple[int, int], str] = {}
        self.deadlines: dict[int, tuple[float, float]] = {}
        self.shared: set[str] = set()
        self.cluster = ""
        self.loaded: set[str] = set()
        self.leaving = False

    def read_secret(self) -> str:
        return Path(os.environ["LOADMANAGER_SIDECAR_SECRET_FILE"]).read_text().strip()

    def has(self, bug: str) -> bool:
        assert bug in BUGS
        return self.bug == bug

    # --- the session

    async def live(self, here: str) -> None:
        async with ClientSession(timeout=ClientTimeout(15)) as self.http:
            while True:
                try:
                    await self.attach(here)
                    await asyncio.gather(*(self.poll() for _ in range(2 if self.has("polls twice") else 1)))
                except (ClientError, TimeoutError, OSError):
                    if self.has("ends with its sidecar"):
                        os._exit(3)
                    await asyncio.sleep(0.1)

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}

    async def attach(self, here: str) -> None:
        body = {"protocol": 1, "hooks": f"{here}/hooks", "urls": {"http": here}, "offers": OFFERS}
        headers = {} if self.has("asks without the secret") else self.authorization
        while True:
            async with self.http.post(f"{self.url}/v1/session", json=body, headers=headers) as answer:
                if answer.status == 201:
                    self.session = (await answer.json())["session"]
                    return
                if answer.status == 401:
                    self.forget("keeps bundles under a new secret")
                    if not self.has("reads the secret once"):
                        self.secret = self.read_secret()
                if answer.status == 409 and self.has("attaches once"):
                    await asyncio.Event().wait()
                headers = self.authorization
                await asyncio.sleep(float(answer.headers.get("Retry-After", 0.2)))

    def forget(self, unless: str) -> None:
        self.session = ""
        self.deadlines.clear()
        if not self.has(unless):
            self.held.clear()
            self.sequences.clear()

    async def poll(self) -> None:
        """Until the session has ended."""
        session = self.session
        url = f"{self.url}/v1/session/{session}/lease?wait_ms=500"
        while session == self.session:
            before = time.monotonic(), time.time()
            try:
                async with self.http.get(url, headers=self.authorization) as answer:
                    if answer.status in (401, 410):
                        self.forget("keeps bundles" if answer.status == 410 else "keeps bundles under a new secret")
                        return
                    lease = await answer.json()
            except (ClientError, TimeoutError, OSError):
                if self.has("ends with its sidecar"):
                    os._exit(3)
                await asyncio.sleep(0.05)
                continue
            self.take(lease, (time.monotonic(), time.time()) if self.has("counts from the answer") else before)

    def take(self, lease: dict, before: tuple[float, float]) -> None:
        if not self.has("keeps partitions"):
            self.deadlines.clear()
        for partition, valid_ms in lease["valid_ms"].items():
            self.deadlines[int(partition)] = (before[0] + valid_ms / 1000, before[1] + valid_ms / 1000)
        self.cluster = lease["cluster"]
        self.shared = set(lease["shared"]) | (self.shared if self.has("shared for ever") else set())
        if self.has("ignores shared"):
            self.shared = set()
        if self.has("ignores orders"):
            return
        for order in lease["abandon"]:
            last = self.sequences.get(order["bundle"])
            if last is None or last[0] < order["sequence"] or self.has("ignores sequences of orders"):
                answered = asyncio.get_running_loop().create_future()
                answered.set_result((409, "late") if self.has("declines late hooks") else (204, None))
                self.sequences[order["bundle"]] = order["sequence"], answered
                self.held.pop(order["bundle"], None)

    async def leave(self) -> None:
        """End the session, and the process."""
        self.leaving = True
        if not self.has("no delete"):
            with contextlib.suppress(ClientError, TimeoutError, OSError):
                url = f"{self.url}/v1/session/{self.session}"
                async with self.http.delete(url, headers=self.authorization, timeout=ClientTimeout(60)):
                    pass
        if self.has("lingers"):
            await asyncio.Event().wait()
        await asyncio.sleep(0.1)
        os._exit(1 if self.has("exits with 1") else 0)

    # --- hooks

    def signed(self, headers, body: bytes) -> bool:
        message_id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if self.has("no signature"):
            return True
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        if self.has("body not signed"):
            return bool(headers.get("webhook-signature"))
        told = base64.b64encode(hmac.digest(key, f"{message_id}.{stamp}.".encode() + body, hashlib.sha256)).decode()
        if f"v1,{told}" not in headers.get("webhook-signature", "").split():
            return False
        return self.has("any time") or abs(time.time() - int(stamp)) <= TOLERANCE_S

    async def hook(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not self.signed(request.headers, body):
            return web.Response(status=401, text="the signature is wrong, or the time")
        message = json.loads(body)
        data = message["data"]
        if data["session"] != self.session and not self.has("ignores sessions"):
            return web.Response(status=409, text="another session")
        if "bundle" not in data:
            return web.json_response(self.load())
        status, said = await self.in_order(message["type"], data)
        return web.Response(status=status) if said is None else web.json_response(said, status=status)

    async def in_order(self, kind: str, data: dict) -> tuple[int, object]:
        bundle, sequence = data["bundle"], data["sequence"]
        last = None if self.has("ignores sequences") else self.sequences.get(bundle)
        if last is not None and sequence < last[0]:
            return 409, {"detail": "a later hook came before"}
        if last is not None and sequence == last[0] and not (self.has("releases anew") and kind == "release"):
            if self.has("declines repeats") and kind == "acquire":
                return 409, {"detail": "a repeat"}
            return await asyncio.shield(last[1])
        answered = asyncio.get_running_loop().create_future()
        self.sequences[bundle] = sequence, answered
        try:
            answer = await getattr(self, kind)(data)
        except Refused as refused:
            answer = refused.status, {"detail": str(refused)}
        answered.set_result(answer)
        if self.has("forgets sequences") and kind in ("release", "abandon"):
            self.sequences.pop(bundle, None)
        return answer

    async def prepare(self, data: dict) -> tuple[int, object]:
        if self.has("prepare serves"):
            self.held[data["bundle"]] = Held(data["lo"], data["hi"], 0, "", serving=True)
        return 204, None

    async def acquire(self, data: dict) -> tuple[int, object]:
        bundle, hand_off = data["bundle"], data["hand_off"]
        space = data["lo"], data["hi"]
        if self.has("refuses hand_off") and hand_off is not None:
            raise Refused(400, "no hand_off, please")
        if self.has("needs a hand_off") and hand_off is None and any(
            lo <= space[0] and space[1] <= hi and (lo, hi) != space for lo, hi in self.fences
        ):  # fmt: skip
            raise Refused(400, "a hand_off, please")
        overlapping = [token for (lo, hi), token in self.fences.items() if lo < data["hi"] and data["lo"] < hi]
        if not self.has("no fence") and any(data["token"] < token for token in overlapping):
            raise Refused(412, "the token is too old")
        token = self.fences.setdefault(space, data["token"]) if self.has("first token") else data["token"]
        self.fences[space] = token
        held = self.held[bundle] = Held(data["lo"], data["hi"], data["partition"], token)
        self.loaded.add(bundle)
        await asyncio.sleep(LONG_LOAD_S if self.has("late acquire") else LOAD_S)
        if self.has("late acquire"):
            self.held[bundle] = held
        held.serving = True
        return 204, None

    async def release(self, data: dict) -> tuple[int, object]:
        held = self.held.get(data["bundle"])
        if held is None:
            if self.has("declines unknown release"):
                raise Refused(404, "no such bundle")
            return 200, {"hand_off": None}
        if not self.has("keeps on release"):
            del self.held[data["bundle"]]
        while held.in_progress and not self.has("release does not wait") and not self.has("keeps on release"):
            held.idle.clear()
            await held.idle.wait()
        return 200, {"hand_off": base64.b64encode(HAND_OFF).decode()}

    async def abandon(self, data: dict) -> tuple[int, object]:
        if data["bundle"] not in self.held and self.has("declines unknown abandon"):
            raise Refused(404, "no such bundle")
        if not self.has("keeps on abandon"):
            self.held.pop(data["bundle"], None)
        return 204, None

    async def positions(self, data: dict) -> tuple[int, object]:
        return 200, {"positions": [data["lo"], data["hi"] - (not self.has("positions elsewhere"))]}

    async def rates(self, data: dict) -> tuple[int, object]:
        return 200, {"rates": [[data["lo"], 1.5, -100 if self.has("negative rates") else 100]]}

    def load(self) -> dict:
        bundles = self.loaded if self.has("loads all") else self.held
        more = {"messages": 1} if self.has("loads no field") else {"in_rate_msg_s": 1.5}
        return {"loads": [{"bundle": bundle, "keys": 1, **more} for bundle in bundles]}

    # --- requests

    def find(self, key: str) -> Held | None:
        position = zlib.crc32(f"persistent://{key}".encode())
        for held in self.held.values():
            lo, hi = held.lo + self.has("lo exclusive"), held.hi + self.has("hi inclusive")
            if self.has("last is short"):
                hi &= 0xFFFFFFFF
            if lo <= position < hi:
                return held
        return None

    def valid(self, held: Held, key: str) -> bool:
        if key.rpartition("/")[0] in self.shared or self.has("no deadline"):
            return True
        if self.has("one deadline"):
            deadlines = list(self.deadlines.values())
            return bool(deadlines) and time.monotonic() < max(deadlines)[0]
        monotonic_s, wall_s = self.deadlines.get(held.partition, (0.0, 0.0))
        if self.has("its clock stands"):
            monotonic_s, wall_s = monotonic_s + STOOD_S[0], float("inf")
        return time.monotonic() < monotonic_s and time.time() < wall_s

    async def get(self, request: web.Request) -> web.Response:
        key = request.query["key"]
        deadline_s = time.monotonic() + 5
        cluster = "" if self.has("any cluster") else request.headers.get("Loadmanager-Cluster", "")
        if self.has("one identity") and cluster not in ("", self.cluster):
            return web.Response(status=421)
        if cluster not in ("", self.cluster) and (elsewhere := await self.ask(key, cluster)) is not None:
            return elsewhere
        while True:
            held = self.find(key)
            if held is not None:
                held.in_progress += 1
                try:
                    if held.serving and self.valid(held, key) and not (self.leaving and self.has("stops at once")):
                        await asyncio.sleep(SLOW_S if request.path == "/slow" else 0)
                        shown = {} if self.has("no token") else {"Fencing-Token": held.token}
                        return web.Response(text="mine", headers=shown)
                finally:
                    held.in_progress -= 1
                    held.idle.set()
            if (elsewhere := await self.ask(key, cluster)) is not None:
                return elsewhere
            if time.monotonic() > deadline_s or self.has("does not wait"):
                return web.Response(status=503, headers={"Retry-After": "1"})
            await asyncio.sleep(0.01)

    async def ask(self, key: str, cluster: str) -> web.Response | None:
        """What to answer; None: look again."""
        if self.has("no redirect"):
            return web.Response(status=404)
        url = f"{self.url}/v1/claims/{quote(key, safe='')}?timeout_ms=5000"
        try:
            headers = self.authorization | ({"Loadmanager-Cluster": cluster} if cluster else {})
            async with self.http.get(self.yarl(url), headers=headers) as answer:
                if answer.status == 200:
                    return None
                body = await answer.read()
                if self.has("no urls") and answer.status == 421:
                    body = json.dumps({**json.loads(body), "urls": {}}).encode()
                kept = () if self.has("no retry-after") else ("Retry-After",)
                headers = {name: answer.headers[name] for name in (*PASSED_ON, *kept) if name in answer.headers}
                return web.Response(status=answer.status, body=body, headers=headers)
        except (ClientError, TimeoutError, OSError):
            return web.Response(status=503, headers={"Retry-After": "1"})

    @staticmethod
    def yarl(url: str):
        from yarl import URL

        return URL(url, encoded=True)


PASSED_ON = ("Content-Type", "Loadmanager-Cluster")
OFFERS = ["prepare", "load", "positions", "rates"]
STOOD_S = [0.0]
"""The time for which the process was stopped."""
SEEN_S = [time.monotonic()]
"""When it last ran. A process that a busy machine lets wait is not stopped: only SIGCONT tells."""


def goes_on(*_: object) -> None:
    """Python calls this before the loop does anything else."""
    STOOD_S[0] += time.monotonic() - SEEN_S[0]


async def watch() -> None:
    signal.signal(signal.SIGCONT, goes_on)
    while True:
        SEEN_S[0] = time.monotonic()
        await asyncio.sleep(0.02)


async def main(bug: str) -> None:
    service = Service(bug)
    app = web.Application()
    app.add_routes([web.post("/hooks", service.hook), web.get("/keys", service.get), web.get("/slow", service.get)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    loop = asyncio.get_running_loop()
    tasks = set()
    loop.add_signal_handler(signal.SIGTERM, lambda: tasks.add(asyncio.ensure_future(service.leave())))
    tasks.add(asyncio.ensure_future(watch()))
    await service.live(f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", choices=["", *BUGS], default="")
    asyncio.run(main(parser.parse_args().bug))
    sys.exit(2)
