"""The site of the documentation builds without a warning, and a reader's browser fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

FETCHED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^">\s]+')


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'api'}", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "tutorial/index.html", "reference/api/index.html", "settings/index.html"} <= set(pages)
    assert "run_until_signal" in pages["reference/api/index.html"]
    assert "unload" in pages["reference/commands/index.html"]
    assert "<code>/v1/lookup</code>" in pages["reference/rest/index.html"]
    assert ">revoking</text>" in pages["state-machine/index.html"], "its diagram is drawn"
    assert pages["state-machine/index.html"].count(">revoke</text>") == 1, "one arrow from five states"
    assert not [name for name, text in pages.items() if "stateDiagram" in text]
    assert not {name: found for name, text in pages.items() if (found := FETCHED.findall(text))}
