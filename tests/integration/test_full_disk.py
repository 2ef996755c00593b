"""A full disk under SQLite: writes are refused with advice, serving and lookups go on, and space mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("full_disk.py")
MOUNT = 'mount -t tmpfs -o size=6m tmpfs "$1" && exec "$2" "$3" "$1"'


def on_a_small_disk(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with a disk of 6 MiB that nobody else sees."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    command = [*namespace, "sh", "-c", MOUNT, "sh", str(directory), sys.executable, str(SCRIPT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_a_full_disk_refuses_writes_and_costs_no_ownership(tmp_path: Path) -> None:
    run = on_a_small_disk(tmp_path)
    if "unshare" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"this machine gives no mount namespace: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["unserved"] == 0
    assert seen["located"]
    assert "full" in seen["full"], "the refusal says that the disk is full"
    assert seen["after"] == "moved"
