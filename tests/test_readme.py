"""The README's promises that can be run: its embedding example, and the files that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stack.servers import free_port
from tests.pages import ROOT, blocks

README = (ROOT / "README.md").read_text()
PATIENCE_S = 120.0


def test_the_embedding_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"mine, under token 0000-\d{5}-\d{15}", run.stdout)


@pytest.mark.slow
def test_the_two_brokers_move_the_bundle_of_a_topic(tmp_path: Path) -> None:
    (block,) = (block.text for block in blocks("README.md") if block.title == "two brokers")
    one, two = free_port(), free_port()
    install, *lines = block.replace("8080", str(one)).replace("8081", str(two)).splitlines()
    assert install == "pip install '.[all]'"
    script = ["trap 'kill $(jobs -p); wait' EXIT", "ready=0"]
    for line in lines:
        start, background, _ = line.partition(" &   #")
        wait = "ready=$((ready + 1)); until [ $(grep -c ' is ready: ' said) = $ready ]; do sleep 0.1; done"
        script.append(f"{start} 2>>said & {wait}" if background else line)
    ran = subprocess.run(
        ["bash", "-ec", "touch said\n" + "\n".join(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LOADMANAGER_ADMIN_URL": f"127.0.0.1:{one}",
        },
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr + (tmp_path / "said").read_text()
    assert f"127.0.0.1:{two}" in ran.stdout.splitlines()[-1]


def test_every_file_that_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
