"""The command as a process of its own, many times over, for what one import of all its modules costs.

A process imports what a broker needs, and forks for each line: each has its own exit code, folder and standard error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = """
import json, os, sys, traceback
import loadmanager.embedding.broker, loadmanager_api.server
from loadmanager_api.cli import broker
from loadmanager_api.cli.main import main

for folder, *arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT), 2)
        code = 70
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


async def run_each(lines: Sequence[Sequence[str]], directory: Path, timeout_s: float) -> list[tuple[int, str]]:
    """Exit code and standard error of each line, run one after the other, each in an empty folder."""
    folders = [directory / str(number) for number in range(len(lines))]
    for folder in folders:
        folder.mkdir()
    told = json.dumps([[str(folder), *line] for folder, line in zip(folders, lines, strict=True)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, told), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        codes = (await asyncio.wait_for(process.communicate(), timeout_s))[0].split()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return [(int(code), (folder / "errors").read_text()) for code, folder in zip(codes, folders, strict=True)]
