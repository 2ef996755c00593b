"""An archive of the classes that Spark's JVM loads (AppCDS): with it a command answers some three seconds earlier.

`loadmanager history jars` calls `make()`, which takes half a minute, and 190 MB beside the jars; sessions on this
machine call `options()`. An archive is for one Java and for the very jars that it was made of: the JVM ignores it where
one of them was installed again. Each environment has its own, and `make` keeps the latest few.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from loadmanager.history import jars

TRAINING = "loadmanager.history.training"
"""The program that does some work and ends, which this module does not import."""
TIMEOUT_S = 300
KEPT = 3
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM tells on standard output of each class that it can't archive, and of an archive that it doesn't take."""


def class_path() -> str:
    """The jars that every job needs, for a JVM on this machine. Raises Invalid where they are missing."""
    return ":".join(str(jar) for jar in jars.needed())


def options() -> str:
    """Options for a JVM with `class_path()`; none where there is no archive for it."""
    file = _file()
    return f'"-XX:SharedArchiveFile={file}" -Xshare:auto {SILENT}' if file is not None and file.exists() else ""


def make() -> bool:
    """Make the archive unless it exists. Returns True if it exists then. A Java that can't make one is not an error."""
    file = _file()
    if file is None or file.exists():
        return file is not None
    part = file.with_suffix(f".{os.getpid()}.part")
    command = [sys.executable, "-m", TRAINING, str(part)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_S)
        part.rename(file)
    except (OSError, subprocess.TimeoutExpired):
        part.unlink(missing_ok=True)
        return False
    by_age = sorted(file.parent.glob("*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in by_age[KEPT:]:
        old.unlink(missing_ok=True)
    return True


def _file() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None or not java.is_file():
        return None
    own = sorted(Path(spark.origin).parent.glob("jars/*.jar"))
    made_of = [(str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in (java, *own, *jars.needed())]
    about = (str(java.resolve()), spark.origin, made_of)
    return jars.folder() / f"classes-{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.jsa"
