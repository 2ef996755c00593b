"""The service that is tried: its process, hooks sent to it (forged ones too), and requests as of clients."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol, Self
from urllib.parse import quote

import aiohttp

from loadmanager.client.redirection import CLUSTER_HEADER
from loadmanager.model.keys import key_at
from loadmanager.sidecar import wire
from loadmanager.sidecar.conformance.played_sidecar import HOST, Application, Gate, Grant, RequestLog, Script, nobody
from loadmanager.sidecar.sidecar import Sessions
from loadmanager.sidecar.wire import Secret
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Token

_SHOWN_BYTES = 2_000


class Service:
    """One process, with those that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: IO[bytes]) -> None:
        self._process = process
        self._output = output

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Service:
        """Raises OSError if there is no such program."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        return cls(process, output)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    @property
    def wrote(self) -> str:
        """The end of what it wrote to its standard output and error."""
        size = os.fstat(self._output.fileno()).st_size
        shown = os.pread(self._output.fileno(), _SHOWN_BYTES, max(0, size - _SHOWN_BYTES))
        return shown.decode(errors="replace").strip()

    def pause(self) -> None:
        """Stop all its processes (SIGSTOP): they run no further instruction."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let them run again (SIGCONT)."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command, as Kubernetes does."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    async def exited(self, timeout_s: float) -> bool:
        """Whether it ends by itself within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return self.exit_code is not None

    async def end(self) -> None:
        """Kill what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._output.close()


_AGAIN_S = 0.05


@dataclass(frozen=True)
class Hook:
    """One hook: what is sent again is equal to the first, byte for byte."""

    kind: str
    message_id: str
    sequence: int
    body: bytes

    def __str__(self) -> str:
        return f"{self.kind} with sequence {self.sequence}"


@dataclass(frozen=True)
class Answer:
    """An answer of the service; status 0: there was none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_s: float
    """When the request was sent, in monotonic time; `came_s`: when the whole answer was there."""
    came_s: float

    @property
    def well(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    @property
    def declined(self) -> bool:
        """4xx."""
        return 400 <= self.status < 500

    def json(self) -> Any:
        """The body; None if it is not JSON."""
        with suppress(ValueError):
            return json.loads(self.body)
        return None

    def __str__(self) -> str:
        said = " ".join(self.body[:200].decode(errors="replace").split())
        return f"{self.status} {said}".strip() if self.status else f"no answer ({said})"


def hook_of(kind: str, session: str, sequence: int, bundle: Bundle | None = None, **more: Any) -> Hook:
    """A hook of this kind. `acquire` wants token, partition and hand_off (bytes or None), `release` may have `to`."""
    common = {"session": session, "sequence": sequence}
    if bundle is not None:
        lo, hi = bundle.bounds
        common |= {"bundle": str(bundle), "namespace": bundle.namespace, "lo": lo, "hi": hi}
    data: wire.HookData
    match kind:
        case "acquire":
            handed: bytes | None = more.pop("hand_off", None)
            hand_off = None if handed is None else base64.b64encode(handed).decode()
            data = wire.AcquireHook.model_validate({**common, **more, "hand_off": hand_off})
        case "release":
            data = wire.ReleaseHook.model_validate({**common, "to": more.get("to")})
        case _:
            data = (wire.HookData if bundle is None else wire.BundleHook).model_validate(common)
    body = wire.hook_body(kind, data, datetime.now(UTC))
    return Hook(kind, f"{session}.{sequence}", sequence, body)


async def post(
    http: aiohttp.ClientSession, url: str, hook: Hook, headers: Mapping[str, str], body: bytes, timeout_s: float
) -> Answer:
    """Send it until it is answered by anything but 503; at the end of the time, status 0."""
    sent_s, last = time.monotonic(), b"nothing came"
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    said = {"Content-Type": "application/json", **headers}
                    async with http.post(url, data=body, headers=said, allow_redirects=False) as answer:
                        last = await answer.read()
                        if answer.status != 503:
                            return Answer(answer.status, answer.headers, last, sent_s, time.monotonic())
                except (aiohttp.ClientError, OSError) as error:
                    last = f"{hook.kind}: {type(error).__name__} {error}".encode()
                await asyncio.sleep(_AGAIN_S)
    return Answer(0, {}, last, sent_s, time.monotonic())


def signed(hook: Hook, secret: Secret, at: datetime | None = None) -> dict[str, str]:
    """The headers of a hook that is sent at this time, now by default."""
    return secret.signed(hook.message_id, hook.body, at or datetime.now(UTC))


WIDTH = 1 << 12
"""Positions in a bundle of a check."""
MARGIN = 1 << 24
"""No bundle of a check is nearer to an end of the hash space, except in checks of the ends."""
AGAIN_S = 0.05
PROBE_S = 10.0
SLACK_S = 0.3
"""What a check leaves that does not look at when a lease ends exactly."""
CLOCKS_S = 0.05
"""What clocks may be read apart."""


class Serve(Protocol):
    """Serve a sidecar's endpoints on a socket, each request through `around`."""

    def __call__(
        self, sessions: Sessions, secret: Secret, around: Callable[[Application], Application], listening: socket.socket
    ) -> AbstractAsyncContextManager[None]: ...


@dataclass(frozen=True)
class Options:
    """What is tried, and how it is asked."""

    command: tuple[str, ...]
    probe: str
    namespace: str
    slow: str | None = None
    start_s: float = 60.0
    """The longest time until a process that was started has attached."""
    patience_s: float = 15.0
    """The longest time for anything else that must come."""


class Failure(Exception):
    """The service does not do what it should."""

    def __init__(self, expected: str, got: object) -> None:
        super().__init__(f"expected {expected}; got {got}")
        self.expected = expected
        self.got = str(got)


class Skipped(Exception):
    """The check does not apply to this service; the message says why."""


@dataclass(frozen=True)
class Owned:
    """A bundle that was acquired, and a key in its middle."""

    bundle: Bundle
    key: Key
    token: Token
    hook: Hook


class Stage:
    """Use it as a context. Each check begins by `clear()`."""

    def __init__(self, options: Options, serve: Serve, folder: Path) -> None:
        """`folder` is for the secret."""
        self.options = options
        self.script = Script()
        self.watch = RequestLog()
        self.steps: list[str] = []
        """What the present check did so far."""
        self.acquired = set[Bundle]()
        """Bundles that the service may have."""
        self._serve = serve
        self._file = folder / "secret"
        self._stack = AsyncExitStack()
        self._used: list[Bundle] = []
        self._sequence = self._partition = 0
        self._offset = int(time.time() * 1000)
        """Of the last token: a store that remembers those of an earlier run has lower ones."""
        self._service: Service | None = None

    async def __aenter__(self) -> Self:
        self.gate = Gate()
        self._stack.push_async_callback(self.gate.close)
        self._http = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        )
        await self.renew_secret()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.end_service()
        self.script.end()
        self.script.resume()
        await self._stack.aclose()

    # --- the sidecar

    async def renew_secret(self) -> None:
        """Serve the endpoints under a new secret, which is in the file; the gate does not lead there yet."""
        self._file.unlink(missing_ok=True)
        self.secret = Secret.of(self._file)
        listening = socket.create_server((HOST, 0))
        self._target: tuple[str, int] = listening.getsockname()[:2]
        await self._stack.enter_async_context(self._serve(self.script, self.secret, self.watch.around, listening))

    async def open(self) -> None:
        """The sidecar is reachable."""
        await self.gate.open(self._target)

    def clear(self) -> None:
        """Begin a check: all answers are the usual ones."""
        self.steps.clear()
        self.script.resume()
        self.script.grant, self.script.claim, self.script.conflicts = Grant(), nobody, 0

    def note(self, step: str) -> None:
        """Say what the check does."""
        self.steps.append(step)

    def grant(self, grant: Grant) -> None:
        """Answer polls so from now on."""
        said = ", ".join(f"{name} {value}" for name, value in vars(grant).items() if value or name == "valid_ms")
        self.note(f"answered polls with {said}")
        self.script.grant = grant

    async def taken_in(self) -> None:
        """Wait until the service has surely read an answer of now: it polled, got one, and polled again twice."""
        before, session = len(self.script.polls), self.script.session
        known = self.script.until(
            lambda: len(self.script.polls) > before + 2 or self.script.session != session, self.options.patience_s
        )
        expect(await known, "the service polls the lease, again and again", self.recent_requests)
        expect(self.script.session == session, "the session goes on", self.recent_requests)

    @property
    def recent_requests(self) -> str:
        """What the service asked last."""
        return f"its last requests: {', '.join(list(self.watch.requests)[-8:]) or 'none'}"

    # --- the process

    @property
    def runs(self) -> bool:
        """Returns True if the process runs."""
        return self._service is not None and self._service.exit_code is None

    @property
    def service(self) -> Service:
        """The process."""
        assert self._service is not None, "start() first"
        return self._service

    async def start(self) -> None:
        """Start the process again, without waiting for what it does."""
        await self.end_service()
        self.script.forget()
        where = {"LOADMANAGER_SIDECAR": self.gate.url, "LOADMANAGER_SIDECAR_SECRET_FILE": str(self._file)}
        self._service = await Service.start(self.options.command, where)
        self.note("started the command")

    async def end_service(self) -> None:
        """Kill the process, if it runs."""
        if self._service is not None:
            await self._service.end()
            self._service = None

    async def until_attached(self, before: int, timeout_s: float | None = None) -> None:
        """Wait for a session after the first `before` ones."""
        deadline_s = time.monotonic() + (timeout_s or self.options.patience_s)
        while self.script.attached <= before:
            expect(self.runs, "the service attaches", self.how_it_ended)
            left_s = deadline_s - time.monotonic()
            expect(left_s > 0, "the service attaches", self.recent_requests)
            await self.script.until(lambda: self.script.attached > before, min(left_s, 0.2))
        self.note("the service attached")

    @property
    def how_it_ended(self) -> str:
        """The exit of the process, and what it wrote."""
        if self._service is None:
            return "it was not started"
        code = self.service.exit_code
        return f"{'it runs' if code is None else f'it exited with {code}'}; it wrote: {self.service.wrote or 'nothing'}"

    # --- hooks

    def new_bundle(self, width: int = WIDTH) -> Bundle:
        """A bundle that no check had before."""
        while True:
            lo = random.randrange(MARGIN, (1 << 32) - MARGIN - width)
            bundle = Bundle(self.options.namespace, lo, lo + width)
            if all(bundle.hi <= used.lo or used.hi <= bundle.lo for used in self._used):
                self._used.append(bundle)
                return bundle

    def new_token(self, partition: int = 0) -> Token:
        """A higher one than all before."""
        self._offset += 1
        return Token(0, partition, self._offset)

    def new_partition(self) -> int:
        """One that no check had before; usually all are in partition 0."""
        self._partition += 1
        return self._partition

    def key(self, position: int) -> Key:
        """The key of the namespace that is at the position."""
        return key_at(self.options.namespace, position)

    def key_in(self, bundle: Bundle) -> Key:
        """A key in the bundle's middle."""
        return self.key((bundle.lo + bundle.hi) // 2)

    def hook(
        self,
        kind: str,
        bundle: Bundle | None = None,
        *,
        sequence: int | None = None,
        session: str | None = None,
        **more: Any,
    ) -> Hook:
        """A hook that is not sent yet, under the next sequence of the present session by default."""
        if sequence is None:
            self._sequence += 1
            sequence = self._sequence
        assert self.script.session is not None or session is not None, "hooks are of a session"
        return hook_of(kind, session or self.script.session or "", sequence, bundle, **more)

    def acquiring(
        self, bundle: Bundle, *, token: Token | None = None, partition: int = 0, **more: Any
    ) -> tuple[Hook, Token]:
        """A hook `acquire` that is not sent yet, under a new token by default; and the token."""
        self.acquired.add(bundle)
        token = token or self.new_token(partition)
        more = {"hand_off": None, **more}
        return self.hook("acquire", bundle, token=str(token), partition=token.partition, **more), token

    async def send(
        self, hook: Hook, *, headers: dict[str, str] | None = None, body: bytes | None = None, how: str = ""
    ) -> Answer:
        """Send a hook, signed by default; 503 and no answer are tried again, as a sidecar does."""
        attachment = self.script.attachment
        assert attachment is not None, "a service is attached"
        told = signed(hook, self.secret) if headers is None else headers
        patience_s = self.options.patience_s
        answer = await post(self._http, attachment.hooks, hook, told, hook.body if body is None else body, patience_s)
        self.note(f"sent the hook {hook}{how and f', {how}'}: {answer}")
        return answer

    async def obeyed(self, hook: Hook, how: str = "") -> Answer:
        """Send a hook that must be answered 2xx."""
        answer = await self.send(hook, how=how)
        expect(answer.well, f"2xx for the hook {hook}{how and f', {how}'}", answer)
        return answer

    async def own(self, bundle: Bundle | None = None, **more: Any) -> Owned:
        """Have the service acquire a bundle, a new one by default."""
        bundle = bundle or self.new_bundle()
        hook, token = self.acquiring(bundle, **more)
        await self.obeyed(hook)
        return Owned(bundle, self.key_in(bundle), token, hook)

    async def serving(self, **more: Any) -> Owned:
        """Have the service acquire a new bundle, and serve it."""
        owned = await self.own(**more)
        await self.serves(owned.key, "it has acquired the bundle, and a lease")
        return owned

    # --- requests of clients

    async def probe(
        self, key: Key, url: str | None = None, timeout_s: float = PROBE_S, *, cluster: str | None = None
    ) -> Answer:
        """Ask the service for a key once, perhaps as a client of a certain cluster."""
        headers = {} if cluster is None else {CLUSTER_HEADER: cluster}
        sent_s = time.monotonic()
        try:
            timeout = aiohttp.ClientTimeout(timeout_s)
            where = self._url(url, key)
            async with self._http.get(where, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                body = await answer.read()
                return Answer(answer.status, answer.headers, body, sent_s, time.monotonic())
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            said = f"{type(error).__name__} {error}".encode()
            return Answer(0, {}, said, sent_s, time.monotonic())

    def _url(self, template: str | None, key: Key) -> Any:
        from yarl import URL

        attachment = self.script.attachment
        http = attachment.urls.get("http", "") if attachment else ""
        short = key.full_name.partition("://")[2]
        name = short.removeprefix(f"{key.namespace}/")
        filled = (template or self.options.probe).replace("{http}", http.rstrip("/"))
        return URL(filled.replace("{key}", quote(short, safe="")).replace("{name}", quote(name, safe="")), encoded=True)

    async def serves(self, key: Key, why: str) -> Answer:
        """The key must be served, now or soon."""
        deadline_s = time.monotonic() + self.options.patience_s
        while (answer := await self.probe(key)).status != 200:
            expect(time.monotonic() < deadline_s, f"status 200 for {key}: {why}", answer)
            await asyncio.sleep(AGAIN_S)
        self.note(f"asked for {key}: 200")
        return answer

    async def refuses(self, key: Key, why: str, for_s: float = AGAIN_S) -> Answer:
        """The key must not be served now, nor for this long. Gives the last answer."""
        until_s = time.monotonic() + for_s
        tries = 0
        while True:
            answer = await self.probe(key)
            tries += 1
            expect(answer.status != 200, f"another status than 200 for {key}: {why}", answer)
            if time.monotonic() >= until_s:
                self.note(f"asked for {key}, {tries} times: {answer}")
                return answer
            await asyncio.sleep(AGAIN_S)


def expect(condition: bool, expected: str, got: object) -> None:
    """Raises Failure unless the condition holds."""
    if not condition:
        raise Failure(expected, got)


async def past(deadline_s: float) -> None:
    """Return after a moment of the monotonic clock."""
    await asyncio.sleep(max(0.0, deadline_s - time.monotonic()) + CLOCKS_S)
