"""One seed, one history: in this process, in others, and whatever the hashes of strings are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCENE = Path(__file__).with_name("run_scene.py")
ROOT = SCENE.parents[2]


def digest_of(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, str(SCENE), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_history_whatever_the_hash_seed(seed: int) -> None:
    assert len({digest_of(seed, hash_seed) for hash_seed in ("0", "1", "4711")}) == 1


def test_another_seed_gives_another_history() -> None:
    assert digest_of(1, "0") != digest_of(2, "0")
