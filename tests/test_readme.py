"""The README's promises that can be run: its embedding example, and the files that it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_embedding_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"mine, under token 0000-\d{5}-\d{15}", run.stdout)


def test_every_file_that_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (Path(__file__).parents[1] / link).exists()]
    assert not missing
