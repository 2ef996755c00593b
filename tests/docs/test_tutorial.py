"""docs/tutorial.md as a reader follows it: files from the page and copied ones; its commands are run in one shell."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from stack.jars import StackError
from stack.servers import PORTS, free_port
from tests.pages import ROOT, blocks

PAGE = "docs/tutorial.md"
EXAMPLES = ROOT / "examples" / "game_rooms"
PATIENCE_S = 240.0
MARK = "--- commands {}"

pytestmark = [pytest.mark.xdist_group("tutorial"), pytest.mark.timeout(2 * PATIENCE_S)]


def files() -> dict[str, str]:
    """Each file that the page has whole: its pieces in their order, as a reader copies them one below the other."""
    pieces: dict[str, list[str]] = {}
    for block in blocks(PAGE):
        if block.language == "python" and "/" not in block.title:
            pieces.setdefault(block.title, []).append(block.text)
    return {name: "\n".join(texts) for name, texts in pieces.items()}


def copied() -> dict[str, str]:
    """The files that the page tells to copy from the repository."""
    commands = "\n".join(block.text for block in blocks(PAGE) if block.language == "bash")
    names = re.findall(r"\.\./loadmanager/examples/game_rooms/(\w+\.py)", commands)
    return {name: (EXAMPLES / name).read_text() for name in names}


def code_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


class Ports:
    """Free ones, for those of the page: what else runs here may use 7101 or 7201."""

    def __init__(self) -> None:
        self._by_shown = next(filter(None, map(self._from, random.sample(range(PORTS.start, PORTS.stop, 100), 50))))

    @staticmethod
    def _from(hundred: int) -> dict[str, str] | None:
        """The page has admin ports 100 above the others, and finds the others by their first digits."""
        shown = {f"7{100 * (group + 1) + at}": hundred + 100 * group + at for group in (0, 1) for at in (1, 2, 3)}
        try:
            by_shown = {each: str(free_port([port])) for each, port in shown.items()}
        except StackError:
            return None
        return {":71[0-9]*": f":{hundred // 100}[0-9]*", **by_shown}

    def put(self, text: str) -> str:
        return re.sub("|".join(map(re.escape, self._by_shown)), lambda found: self._by_shown[found[0]], text)


def test_the_page_shows_or_copies_each_file_of_the_example():
    shown = files()
    assert shown.keys() | copied().keys() == {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"}
    for name, text in shown.items():
        assert code_lines(text) == code_lines((EXAMPLES / name).read_text()), name


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(tmp_path: Path):
    ports = Ports()
    for name, text in (files() | copied()).items():
        (tmp_path / name).write_text(ports.put(text))
    told = run(tmp_path, ports)
    assert told.count("0 lost, 0 doubled") == 3, told
    sections = re.split(re.escape(MARK).replace(r"\{\}", r"\d+\n"), told)[1:]
    commands = 0
    for block in blocks(PAGE):
        if block.language == "sh":
            commands += 1
        elif block.language == "text":
            found = {pattern_of(line) for line in sections[commands - 1].splitlines()}
            for line in block.text.splitlines():
                assert any(each.startswith(pattern_of(line)) for each in found), f"{line}\n{told}"


def run(directory: Path, ports: Ports) -> str:
    """Output of all commands in one shell, as if the reader typed them; ends whatever they leave behind."""
    commands = [ports.put(block.text) for block in blocks(PAGE) if block.language == "sh"]
    script = "".join(f"echo '{MARK.format(i)}'\n{text}" for i, text in enumerate(commands))
    process = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    logs = "".join(f"\n{log.name}:\n{log.read_text()}" for log in sorted(directory.glob("*.log")))
    assert process.returncode == 0, told + logs
    return told


def pattern_of(line: str) -> str:
    """The line without what differs from run to run; where the page leaves off with …, its beginning."""
    line = re.sub(r"rooms:.*", "rooms", line.strip()).removesuffix("…")
    return re.sub(r"0x[0-9a-f]{8}|\d[\d.:-]*", "#", line)
