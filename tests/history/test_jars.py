"""The jars: brought once, whole or not at all, and asked for where they are missing. Maven is played by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.errors import Invalid
from loadmanager.history import jars

BRINGS = 'for word in "$@"; do case $word in -DoutputDirectory=*) to=${word#*=} ;; esac; done; mkdir -p "$to"; '


class Maven:
    """What `mvn` does, and how often it was called."""

    def __init__(self, folder: Path) -> None:
        self._script, self._calls = folder / "mvn", folder / "calls"

    def does(self, script: str) -> None:
        self._script.write_text(f"#!/bin/sh\necho call >> {self._calls}\n{BRINGS}\n{script}\n")
        self._script.chmod(0o755)

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().splitlines()) if self._calls.exists() else 0


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv(jars.PLACE, str(tmp_path / "jars"))
    made = Maven(tmp_path / "bin")
    made.does('touch "$to/a.jar" "$to/b.jar"')
    return made


def names() -> list[str]:
    return [path.name for path in jars.present()]


def test_they_are_brought_once(maven: Maven):
    with pytest.raises(Invalid, match="run `loadmanager history jars` once"):
        jars.present()
    assert jars.bring() == jars.bring() == jars.present()
    assert (names(), maven.calls) == (["a.jar", "b.jar"], 1)


def test_one_that_went_is_missed_and_brought_again(maven: Maven):
    jars.bring()
    (jars.folder() / "a.jar").unlink()
    with pytest.raises(Invalid, match="run `loadmanager history jars` once"):
        jars.present()
    jars.bring()
    assert (names(), maven.calls) == (["a.jar", "b.jar"], 2)


def test_what_was_left_half_way_is_no_jar(maven: Maven):
    maven.does('touch "$to/half.jar"; echo "no route to host"; exit 1')
    with pytest.raises(Invalid, match="no route to host"):
        jars.bring()
    with pytest.raises(Invalid):
        jars.present()
    maven.does('touch "$to/a.jar"')
    jars.bring()
    assert names() == ["a.jar"]


def test_a_maven_that_hangs_is_given_up(maven: Maven, monkeypatch: pytest.MonkeyPatch):
    maven.does("exec sleep 60")
    monkeypatch.setattr(jars, "TIMEOUT_S", 0.2)
    with pytest.raises(Invalid, match="look at the network"):
        jars.bring()


def test_those_that_an_earlier_release_brought_are_good(maven: Maven):
    jars.folder().mkdir(parents=True)
    (jars.folder() / "a.jar").touch()
    (jars.folder() / jars.COMPLETE).touch()
    assert names() == ["a.jar"]
    jars.bring()
    assert maven.calls == 0


def test_another_pom_has_a_folder_of_its_own(maven: Maven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = jars.folder()
    other = tmp_path / "pom.xml"
    other.write_bytes(jars.POM.read_bytes() + b"<!-- another version -->")
    monkeypatch.setattr(jars, "POM", other)
    assert jars.folder() != before
    assert jars.folder().parent == before.parent


def test_those_for_s3_are_brought_when_asked_for_and_then_given_to_jobs(maven: Maven):
    jars.bring()
    assert not jars.has_s3()
    maven.does('case "$*" in *"-P s3 "*) touch "$to/s3.jar" ;; esac')
    jars.bring(s3=True)
    assert (jars.has_s3(), names(), maven.calls) == (True, ["a.jar", "b.jar", "s3.jar"], 2)
    (jars.folder() / jars.S3 / "s3.jar").unlink()
    assert (jars.has_s3(), names()) == (False, ["a.jar", "b.jar"])
