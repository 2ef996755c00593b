"""`loadmanager completion`: what bash itself completes with the script, and what the scripts of the others are."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager_api.cli.main import COMMANDS, main
from tests.api.conftest import WAIT_S, Cluster

ROOT = Path(__file__).parents[2]

# What readline does when the tab key is pressed: break the line at COMP_WORDBREAKS, call what `complete` registered,
# and put what is common to the answers in the place of the last word.
TAB = r"""
eval "$(loadmanager completion bash)"
compopt() { :; }   # there is no readline here to tell
for line; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_WORDS=() COMP_CWORD=0
  "$(complete -p loadmanager | sed 's/.*-F \([^ ]*\).*/\1/')" loadmanager
  printf '%s\n' "${COMPREPLY[@]}" --
done
"""


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A directory with the command `loadmanager` of this tree, which waits for a broker on a busy machine."""
    return command_in(
        tmp_path / "bin", f"from loadmanager_api.cli import suggesting\nsuggesting.TIMEOUT_S = {WAIT_S}\n"
    )


def command_in(directory: Path, first: str = "") -> Path:
    script = directory / "loadmanager"
    directory.mkdir()
    script.write_text(f"#!{sys.executable}\n{first}from loadmanager_api.cli.main import main\nmain()\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return directory


def with_command(commands: Path) -> dict[str, str]:
    """The environment in which bash finds it, and it no broker."""
    path = f"{commands}:{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{ROOT}:{ROOT}/api",
        "LOADMANAGER_ADMIN_URL": "http://127.0.0.1:9",
    }


async def tab(commands: Path, line: str, **environment: str) -> list[str]:
    """What bash offers when the tab key is pressed behind `line`."""
    return (await tabs(commands, line, **environment))[0]


async def tabs(commands: Path, *lines: str, **environment: str) -> list[list[str]]:
    """The same behind each line, typed one after the other."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc", "--noprofile", "-c", TAB, "bash", *lines),
        env={**with_command(commands), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found, errors = await asyncio.wait_for(process.communicate(), WAIT_S * len(lines))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert errors.decode() == ""
    offered = [part.splitlines() for part in found.decode().split("--\n")[:-1]]
    return [[line for line in part if line] for part in offered]


@asynccontextmanager
async def terminal(commands: Path, environment: dict[str, str]) -> AsyncIterator[Callable[[str, str], Awaitable[None]]]:
    """A bash on a terminal of its own, with the script; type a line and the tab key, and wait for what it becomes."""
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc", "--noprofile", "-i"),
        env={**with_command(commands), "TERM": "dumb", "PS1": "$n$ ", "PROMPT_COMMAND": "n=$((n+1))", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown, news, prompts = bytearray(), asyncio.Event(), itertools.count(3)

    def read() -> None:
        shown.extend(os.read(ours, 65_536))
        news.set()

    async def until_line(line: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while re.split(rb"[\r\n]", shown.replace(b"\a", b""))[-1] != line.encode():
                    news.clear()
                    await news.wait()
        except TimeoutError:
            raise AssertionError(f"it is not {line!r}: {bytes(shown[-500:])!r}") from None

    async def typed(text: str, becomes: str) -> None:
        prompt = f"{next(prompts)}$ "  # numbered: what is typed before bash reads lines again is not completed
        os.write(ours, b"\n")
        await until_line(prompt)
        os.write(ours, f"{text}\t".encode())
        await until_line(prompt + becomes)
        os.write(ours, b"\x15")  # forget the line

    asyncio.get_running_loop().add_reader(ours, read)
    try:
        await until_line("1$ ")
        os.write(ours, b'eval "$(loadmanager completion bash)"\n')
        await until_line("2$ ")
        yield typed
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        process.kill()
        await asyncio.wait_for(process.wait(), WAIT_S)
        os.close(ours)


@pytest.mark.slow
async def test_bash_completes_commands_subcommands_and_options(commands: Path):
    lines = (
        *("", "broker", "namespaces cr", "brokers drain --f"),
        *("-o json completion ", "namespaces create --bundles 4 "),
    )
    offered = await tabs(commands, *(f"loadmanager {line}" for line in lines))
    assert offered[0] == sorted(COMMANDS)
    assert offered[1:4] == [["broker", "broker-stats", "brokers"], ["create"], ["--force"]]
    assert offered[4] == ["bash", "zsh", "fish"]
    assert offered[5] == [], "no broker answers, and nothing is said about it"


@pytest.mark.slow
async def test_bash_completes_names_that_the_cluster_knows(cluster: Cluster, commands: Path):
    await cluster.start(2)
    await cluster.create("shop/carts", 2)
    await cluster.create("shop/orders", 2)
    await cluster.create("other/n", 2)
    url = {"LOADMANAGER_ADMIN_URL": cluster.brokers[0].url}
    lines = [
        "brokers drain ",
        "brokers drain 127.0.0.1:",
        "brokers drain 127.0.0.1:7002",
        "topics unload shop/carts/a --dest=127.0.0.1:70",
        "namespaces unload shop/c",
        "namespaces unload ",
        "bundles show sh",
        "bundles show shop/carts/0x8",
        "bundles list --owner 127.0.0.1:7001",
    ]
    offered = await tabs(commands, *(f"loadmanager {line}" for line in lines), **url)
    assert offered == [
        ["127.0.0.1:7001", "127.0.0.1:7002"],
        ["7001", "7002"],  # bash puts what stands before the colon back
        ["7002"],
        ["7001", "7002"],
        ["shop/carts"],
        ["other/n", "shop/carts", "shop/orders"],
        ["shop/carts/", "shop/orders/"],
        ["shop/carts/0x80000000_0xffffffff"],
        ["7001"],
    ]


@pytest.mark.slow
async def test_a_line_on_a_terminal_is_completed_in_its_place(cluster: Cluster, commands: Path):
    await cluster.start()
    environment = {"LOADMANAGER_ADMIN_URL": cluster.brokers[0].url}
    async with terminal(commands, environment) as typed:
        await typed("loadmanager brok", "loadmanager broker")  # which there is, beside `brokers`
        await typed("loadmanager namespaces cr", "loadmanager namespaces create ")
        await typed("loadmanager brokers drain 12", "loadmanager brokers drain 127.0.0.1:7001 ")
        await typed("loadmanager brokers drain 127.0.0.1:70", "loadmanager brokers drain 127.0.0.1:7001 ")
        await typed(
            "loadmanager topics unload t/n/a --dest=127.", "loadmanager topics unload t/n/a --dest=127.0.0.1:7001 "
        )


async def test_the_admin_url_of_the_line_is_asked(cluster: Cluster, commands: Path):
    await cluster.start()
    url = cluster.brokers[0].url
    before, behind = await asyncio.gather(
        tab(commands, f"loadmanager --admin-url {url} brokers drain "),
        tab(commands, f"loadmanager brokers drain --admin-url {url} "),
    )
    assert before == behind == ["127.0.0.1:7001"]


async def test_a_broker_that_hangs_is_not_waited_for(tmp_path: Path):
    commands = command_in(tmp_path / "bin")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        assert await tab(commands, "loadmanager brokers drain ", LOADMANAGER_ADMIN_URL=url) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_the_other_shells_are_valid(shell: str, tmp_path: Path):
    result = CliRunner().invoke(main, ["completion", shell], prog_name="loadmanager")
    assert result.exit_code == 0
    assert f"_LOADMANAGER_COMPLETE={shell}_complete" in result.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(result.stdout)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=WAIT_S)


@pytest.mark.parametrize(
    ("shell", "words", "cword"), [("zsh", "loadmanager broker", "1"), ("fish", "loadmanager ", "broker")]
)
def test_the_other_shells_are_answered(shell: str, words: str, cword: str):
    environment = {"_LOADMANAGER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": cword}
    answer = CliRunner().invoke(main, [], prog_name="loadmanager", env=environment).stdout
    assert "broker" in answer
    assert "brokers" in answer
    assert "namespaces" not in answer


def test_help_says_how_to_use_it():
    shown = CliRunner().invoke(main, ["completion", "--help"]).stdout
    assert "~/.bashrc" in shown
    assert "--answer" not in shown
    assert CliRunner().invoke(main, ["completion", "powershell"]).exit_code == 2
