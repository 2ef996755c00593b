"""The archive of classes: it is used, and only where it fits. `loadmanager history jars` makes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.history import archive, jars

STARTED = """
import tempfile

from loadmanager.history.session import JAVA_OPTIONS, Spark, session
spark = session(Spark(brief=True, conf={JAVA_OPTIONS: "-Xlog:class+load:file=LOG"}))
with tempfile.TemporaryDirectory() as folder:
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    print(sum(each.getUsage().getMax() for each in pools if "Code" in each.getName()) >> 20, "MB for compiled code")
    spark.range(3).write.format("delta").save(folder + "/table")
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another Java, which makes no archive."""
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    return program


@pytest.fixture
def own_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same jars in another place, without an archive."""
    there = jars.folder()
    monkeypatch.setenv(jars.PLACE, str(tmp_path / "jars"))
    jars.folder().parent.mkdir(parents=True)
    jars.folder().mkdir()
    for each in (*there.glob("*.jar"), there / jars.COMPLETE):
        (jars.folder() / each.name).symlink_to(each)
    return jars.folder()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_session_loads_its_classes_from_the_archive(tmp_path: Path) -> None:
    assert archive.make()
    told = tmp_path / "classes.log"
    run = subprocess.run(
        [sys.executable, "-c", STARTED.replace("LOG", str(told))], capture_output=True, text=True, check=True
    )
    assert run.stdout == "240 MB for compiled code\n"
    loaded = told.read_text().splitlines()
    archived = [line for line in loaded if line.endswith("source: shared objects file (top)")]
    assert any(" org.apache.spark.sql.delta." in line for line in archived)
    assert len(archived) > len(loaded) / 2


def test_a_java_that_makes_none_leaves_the_former_one_and_is_no_error(java: Path, own_jars: Path) -> None:
    former = own_jars / "classes-0.jsa"
    former.touch()
    assert not archive.make()
    assert archive.options() == ""
    assert [*own_jars.glob("classes-*")] == [former]


def test_the_latest_few_stay_for_other_environments(
    own_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in range(archive.KEPT + 1):
        former = own_jars / f"classes-{age}.jsa"
        former.touch()
        os.utime(former, (1e9 - age, 1e9 - age))
    (tmp_path / "touching.py").write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(archive, "TRAINING", "touching")
    assert archive.make()
    names = {each.name for each in own_jars.glob("*.jsa")}
    assert len(names) == archive.KEPT
    assert {"classes-0.jsa", "classes-1.jsa"} < names


def test_it_is_of_one_java_and_of_one_place(own_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archive._file()
    assert file is not None
    assert file.parent == own_jars
    file.touch()
    assert str(file) in archive.options()
    assert archive.make(), "it is there"
    other = tmp_path / "home" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert archive.options() == ""
    monkeypatch.delenv("JAVA_HOME")
    assert archive.options() != ""
    jar = jars.needed()[0]
    content = jar.read_bytes()
    jar.unlink()
    jar.write_bytes(content)
    assert archive.options() == "", "a jar was installed again: the JVM would not take the archive"
    monkeypatch.setenv("PATH", os.devnull)
    assert archive.options() == "", "there is no Java"
