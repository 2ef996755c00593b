"""Downloads the jars of `pom.xml` with Maven, once, and says where they are. A running job downloads nothing.

`loadmanager history jars` calls `bring()`; jobs call `present()`, which names that command if jars are missing. They
are in `$LOADMANAGER_HISTORY_JARS`, by default in the user's cache, in a folder named by the POM's digest, so that two
releases don't disturb each other. Those for S3, which few need, are in the folder `s3` in it; jobs get them if they are
there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from loadmanager.errors import Invalid

POM = Path(__file__).with_name("pom.xml")
PLACE = "LOADMANAGER_HISTORY_JARS"
COMPLETE = ".complete"
"""Written last: the names of all jars; empty if an earlier release wrote it."""
TIMEOUT_S = 600
S3 = "s3"
"""The POM's profile, and the folder of its jars."""
S3_GROUPS = ("org.apache.hadoop", "org.reactivestreams", "software.amazon.awssdk", "software.amazon.eventstream")


def folder() -> Path:
    """The folder for this release's jars, whether or not it exists."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(os.environ.get(PLACE) or cache / "loadmanager" / "jars")
    return root / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


def present() -> tuple[Path, ...]:
    """All jars. Raises Invalid, with the command that brings them, where they are missing."""
    return (*needed(), *for_s3())


def needed() -> tuple[Path, ...]:
    """The jars that every job needs. Raises Invalid as `present`."""
    where = folder()
    if not _complete(where):
        raise Invalid(f"the jars that Spark needs are not in {where}: run `loadmanager history jars` once")
    return tuple(_jars_in(where))


def for_s3() -> tuple[Path, ...]:
    """The jars for s3a://, if they are there."""
    return tuple(_jars_in(folder() / S3)) if has_s3() else ()


def has_s3() -> bool:
    """Whether jobs can read and write s3a://."""
    return _complete(folder() / S3)


def _jars_in(where: Path) -> list[Path]:
    return sorted(where.glob("*.jar"))


def _complete(where: Path) -> bool:
    """Whether everything that was downloaded is still there."""
    try:
        names = (where / COMPLETE).read_text().split()
    except OSError:
        return False
    return all((where / name).is_file() for name in names)


def bring(*, s3: bool = False) -> tuple[Path, ...]:
    """The jars, downloaded where they are missing; also those for S3, if asked for.

    Raises Invalid if Maven is missing or fails.
    """
    where = folder()
    where.parent.mkdir(parents=True, exist_ok=True)
    with (where.parent / f"{where.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of this machine would otherwise write the same files
        if not _complete(where):
            shutil.rmtree(where, ignore_errors=True)
            _download(where)
        if s3 and not _complete(where / S3):
            shutil.rmtree(where / S3, ignore_errors=True)
            _download(where / S3, "-P", S3, f"-DincludeGroupIds={','.join(S3_GROUPS)}")
    return present()


def _download(where: Path, *more: str) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise Invalid(
            "mvn is missing: install Maven and a JDK 17+ (Debian: apt-get install openjdk-17-jdk-headless maven)"
        )
    command = [mvn, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={where}", *more]
    try:
        run = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Invalid(
            f"Maven did not bring Spark's jars within {TIMEOUT_S} s: look at the network, and try again"
        ) from None
    if run.returncode != 0:
        raise Invalid(f"Maven could not bring Spark's jars:\n{run.stdout[-2000:]}")
    (where / COMPLETE).write_text("\n".join(jar.name for jar in _jars_in(where)))
