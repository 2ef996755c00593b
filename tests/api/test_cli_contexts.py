"""`loadmanager context`, and which brokers and credentials a command uses: of the line, the environment, a context."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from loadmanager.client.cluster import WHO, header_of
from loadmanager.client.redirection import CLUSTER_HEADER
from loadmanager_api.cli.contexts import parse
from loadmanager_api.cli.main import main
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.api.conftest import Cluster


class Shell:
    """Runs commands with a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / "loadmanager" / "contexts.yaml"

    def __call__(self, *arguments: str, **variables: str) -> Result:
        environment = {"XDG_CONFIG_HOME": str(self.home), **variables}
        return CliRunner().invoke(main, arguments, None, environment)

    async def ask(self, *arguments: str, **variables: str) -> Result:
        """The same in a thread: the command's own loop asks this one."""
        return await asyncio.to_thread(self, *arguments, **variables)

    def done(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def write(self, text: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(text)
        self.file.chmod(0o600)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_contexts_are_set_listed_chosen_and_deleted(shell: Shell):
    assert "makes one" in shell("context", "list").stderr
    assert "use it now" in shell.done("context", "set", "prod", "--admin-url", "b1:8080,b2:8080", "--timeout", "3")
    shell.done("context", "set", "test", "--admin-url", "https://t:1", "--token-env", "T", "--ca", "ca.pem")
    assert stat.S_IMODE(shell.file.stat().st_mode) == 0o600
    listed = json.loads(shell.done("context", "list", "-o", "json"))
    assert [(each["name"], each["current"]) for each in listed] == [("prod", True), ("test", False)]
    assert Path(listed[1]["ca"]).is_absolute(), "commands run anywhere"
    shell.done("context", "use", "test")
    assert "https://t:1" in shell.done("context", "show")
    assert "b1:8080" in shell.done("context", "show", "prod")
    shell.done("context", "set", "test", "--token-env", "", "--timeout", "7")
    assert json.loads(shell.done("context", "show", "-o", "json")) == {
        "name": "test", "admin_url": "https://t:1", "ca": listed[1]["ca"], "timeout_s": 7.0,
    }  # fmt: skip
    shell.done("context", "delete", "test")
    assert "no context is in use" in shell("context", "show").stderr


@pytest.mark.parametrize(
    ("code", "says", "arguments"),
    [
        (2, "needs --admin-url", ("set", "new", "--ca", "x")),
        (1, "not a valid name for a context", ("set", "../x", "--admin-url", "h:1")),
        (1, "not a token", ("set", "new", "--admin-url", "h:1", "--token-env", "eyJ.abc.def")),
        (1, "must not contain a user", ("set", "new", "--admin-url", "http://me:hunter2@h:1")),
        (1, "not both", ("set", "new", "--admin-url", "h:1", "--token-env", "A", "--token-file", "f")),
        (1, "needs client_certificate", ("set", "new", "--admin-url", "h:1", "--client-key", "k")),
        (1, "Did you mean 'prod'", ("use", "prdo")),
        (1, "no context", ("delete", "absent")),
    ],
)
def test_a_context_that_cannot_be_is_refused(shell: Shell, code: int, says: str, arguments: tuple[str, ...]):
    shell.done("context", "set", "prod", "--admin-url", "h:1")
    before = shell.file.read_text()
    result = shell("context", *arguments)
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert "hunter2" not in result.output
    assert shell.file.read_text() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contexts: {a: {admin_url: h, token: hunter2}}", "token_file"),
        ("contexts: {a: {admin_url: h, password: hunter2}}", "token_file"),
        ("contexts: {a: {admin_url: 'http://u:hunter2@h'}}", "must not contain"),
        ("contexts: {a: {admin_url: h, token_env: 'hunter2 hunter2'}}", "not a token"),
        ("contexts: {a: {admin_url: h, sercet: hunter2}}", "sercet"),
        ("contexts: [hunter2]", "Expected `object`"),
        ("contexts: {a: hunter2}", "Expected `object`"),
        ("contexts: {a: {", "not valid YAML"),
        ("hunter2", "Expected `object`"),
    ],
)
def test_a_secret_or_nonsense_in_the_file_is_refused_and_not_repeated(shell: Shell, text: str, says: str):
    shell.write(text)
    result = shell("brokers", "list")
    assert (result.exit_code, says in result.output) == (1, True), result.output
    assert "hunter2" not in result.output
    assert "Traceback" not in result.output


def test_a_file_that_others_may_write_is_not_used(shell: Shell):
    shell.done("context", "set", "prod", "--admin-url", "h:1")
    shell.file.chmod(0o620)
    result = shell("brokers", "list")
    assert (result.exit_code, "chmod 600" in result.output) == (1, True)


def test_a_token_file_that_everybody_may_read_is_not_used(shell: Shell, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("x")
    token.chmod(0o644)
    arguments = ("context", "set", "prod", "--admin-url", "h:1", "--token-file", str(token))
    result = shell(*arguments)
    assert (result.exit_code, "chmod 600" in result.output) == (1, True)
    token.chmod(0o600)
    shell.done(*arguments)
    token.chmod(0o644)
    assert shell("brokers", "list").exit_code == 1


def test_what_is_kept_is_read_back_as_it_was():
    text = "current: a\ncontexts:\n  a:\n    admin_url: https://h\n    token_env: T\n    insecure: true\n"
    assert parse(text, "x").contexts["a"].insecure
    assert parse("", "x").contexts == {}


async def test_the_line_counts_before_the_environment_before_the_context(cluster: Cluster, shell: Shell):
    await cluster.start(2)
    first, second = (broker.url for broker in cluster.brokers)
    dead = "http://127.0.0.1:9"

    async def asked(*arguments: str, **variables: str) -> int:
        return (await shell.ask("brokers", "list", *arguments, **variables)).exit_code

    shell.done("context", "set", "dead", "--admin-url", dead)
    shell.done("context", "set", "good", "--admin-url", first)
    assert await asked() == 3
    assert await asked(LOADMANAGER_ADMIN_URL=second) == 0, "the environment counts before the file's context"
    assert await asked("--admin-url", dead, LOADMANAGER_ADMIN_URL=second) == 3
    assert await asked(LOADMANAGER_CONTEXT="good") == 0
    assert await asked("--context", "dead", LOADMANAGER_ADMIN_URL=second) == 3, "the context of the line is one word"
    assert await asked("--context", "good", LOADMANAGER_ADMIN_URL=dead, LOADMANAGER_CONTEXT="dead") == 0
    assert await asked("--context", "good", "--admin-url", dead) == 3
    assert (await shell.ask("--context", "good", "brokers", "list")).exit_code == 0
    wrong = await shell.ask("brokers", "list", "--context", "goood")
    assert (wrong.exit_code, "Did you mean 'good'" in wrong.output) == (1, True)


async def test_a_context_has_the_credentials_of_its_cluster(cluster: Cluster, shell: Shell, tmp_path: Path):
    issuer, keys, certificates = Issuer("k"), tmp_path / "keys.json", Certificates(tmp_path)
    keys.write_bytes(jwks(issuer))
    certificate, key = certificates.issue("broker", "127.0.0.1")
    await cluster.start(1, token_keys=str(keys), superusers="root", tls_certificate=certificate, tls_key=key)
    token = tmp_path / "token"
    token.write_text(issuer.token("root"))
    token.chmod(0o600)
    url = cluster.brokers[0].url
    shell.done("context", "set", "file", "--admin-url", url, "--ca", certificates.ca, "--token-file", str(token))
    shell.done("context", "set", "variable", "--admin-url", url, "--ca", certificates.ca, "--token-env", "MINE")
    shell.done("context", "set", "bare", "--admin-url", url, "--ca", certificates.ca)
    secret = issuer.token("root")
    assert (await shell.ask("brokers", "list")).exit_code == 0
    assert (await shell.ask("brokers", "list", "--context", "variable", MINE=secret)).exit_code == 0
    unset = await shell.ask("brokers", "list", "--context", "variable", MINE="")
    assert (unset.exit_code, "$MINE, which is not set" in unset.output) == (1, True)
    assert (await shell.ask("brokers", "list", LOADMANAGER_CONTEXT="bare", LOADMANAGER_TOKEN=secret)).exit_code == 0
    other = await shell.ask("brokers", "list", "--context", "bare", LOADMANAGER_TOKEN=secret)
    assert (other.exit_code, "say who you are" in other.output) == (1, True), "no other cluster's token is sent"
    assert secret not in shell.file.read_text()
    assert (await shell.ask("channel", "watch", "--limit", "1")).exit_code == 0


async def test_a_context_keeps_to_the_cluster_of_its_first_answer(cluster: Cluster, shell: Shell):
    await cluster.start(1)
    url = cluster.brokers[0].url
    own = cluster.brokers[0].node.channel.table.cluster_identity
    assert own is not None
    ours = header_of(own)
    shell.done("context", "set", "prod", "--admin-url", url)
    assert (await shell.ask("brokers", "list")).exit_code == 0
    assert f"cluster: {ours}" in shell.file.read_text()

    namesake = f"{own.cluster}/0abc-1/{own.generation}"
    for other in ("green/1/0", namesake):
        shell.done("context", "set", "prod", "--cluster", other)
        for command in (("brokers", "list"), ("channel", "watch"), ("namespaces", "create", "a/b")):
            refused = await shell.ask(*command)
            assert refused.exit_code == 1, refused.output
            assert ours in refused.stderr
            assert other in refused.stderr
            assert f"loadmanager context set prod --cluster '{ours}'" in refused.stderr
        assert other in shell.file.read_text()
    shell.done("context", "set", "prod", "--cluster", ours)
    assert (await shell.ask("brokers", "list")).exit_code == 0

    shell.done("context", "set", "prod", "--cluster", "green/1/0")
    assert (await shell.ask("brokers", "list", "--admin-url", f"{url}/")).exit_code == 0, (
        "another address is no context's"
    )
    assert (await shell.ask("brokers", "list", "--context", "prod", "--admin-url", url)).exit_code == 1
    shell.done("context", "set", "prod", "--cluster", "")
    assert (await shell.ask("brokers", "list")).exit_code == 0
    assert ours in shell.file.read_text()
    assert "NAME/IDENTITY/GENERATION" in shell("context", "set", "prod", "--cluster", "a/b").stderr

    shell.done("context", "set", "prod", "--cluster", own.cluster)
    assert (await shell.ask("brokers", "list")).exit_code == 0
    assert "cluster" in shell.file.read_text()
    assert ours not in shell.file.read_text(), "a name that was given stays a name"
    shell.done("context", "set", "other", "--admin-url", "127.0.0.1:1")
    assert (await shell.ask("brokers", "list", "--context", "other", "--admin-url", url)).exit_code == 0
    assert ours not in shell.file.read_text(), "the cluster of another address is not the context's"


class Stranger:
    """An address that is not the one which the context means; it notes which credentials it is sent."""

    def __init__(self, status: int, cluster: str, who: str = "") -> None:
        self._status, self._cluster, self._who = status, cluster, who or cluster
        self.seen: list[str] = []
        self.sends_to = ""
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers.get("Authorization", ""))
        cluster = self._who if request.path == WHO else self._cluster
        headers = {CLUSTER_HEADER: cluster} if cluster else {}
        if self.sends_to and not cluster:
            raise web.HTTPTemporaryRedirect(self.sends_to)
        return web.json_response([], status=self._status, headers=headers)


@asynccontextmanager
async def listening(*strangers: Stranger) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for each in strangers:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", each.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            each.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o600)
    return file


COMMANDS = ("brokers", "list"), ("channel", "watch"), ("doctor", "-o", "x.tar.gz", "--no-check")


async def complete(shell: Shell) -> None:
    line = "loadmanager --context p brokers drain "
    await shell.ask("completion", "bash", "--answer", COMP_LINE=line)


@pytest.mark.parametrize(
    ("meant", "cluster", "status"),
    [("blue", "green/1/0", 200), ("blue", "", 404), ("", "", 200), ("", "no cluster/", 200)],
)
async def test_no_token_goes_to_what_does_not_name_the_cluster_of_the_context(
    shell: Shell, token: Path, monkeypatch: pytest.MonkeyPatch, meant: str, cluster: str, status: int
):
    monkeypatch.setattr("loadmanager_api.cli.channel.ATTEMPTS", 0)
    monkeypatch.chdir(token.parent)
    stranger = Stranger(status, cluster)
    async with listening(stranger):
        shell.done("context", "set", "p", "--admin-url", stranger.url, "--token-file", str(token), "--cluster", meant)
        for command in COMMANDS:
            refused = await shell.ask(*command)
            assert refused.exit_code != 0, refused.output
            assert (cluster if meant and cluster else "names no cluster") in refused.output
        asked = len(stranger.seen)
        await complete(shell)
        assert len(stranger.seen) > asked
        assert set(stranger.seen) == {""}


async def test_no_token_goes_where_another_address_answers_for_it(shell: Shell, token: Path):
    first, ours, other = Stranger(200, ""), Stranger(200, "blue/1/0"), Stranger(200, "", "blue/1/0")
    async with listening(first, ours, other):
        first.sends_to, other.sends_to = f"{ours.url}{WHO}", f"{first.url}/v1/brokers"
        for url in (first.url, other.url):
            shell.done("context", "set", "p", "--admin-url", url, "--token-file", str(token), "--cluster", "blue")
            assert (await shell.ask("brokers", "list")).exit_code != 0
            await complete(shell)
        assert set(other.seen) == {"", "Bearer secret"}
        assert set(first.seen + ours.seen) == {""}
