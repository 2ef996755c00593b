"""Whatever language the machine has, and so whatever digits its JVM writes, the tables are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.audit import audit
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.lake import Lake, Pinned
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import SqliteSource
from tests.history.ingest import material
from tests.history.ingest.comparing import differences

LANGUAGES = ("ar-EG", "fa-IR", "tr-TR")
"""Two with digits of their own, and one with letters of its own."""


def speak(spark: SparkSession, language: str) -> None:
    """Set the JVM's language, as Java does by LANG when it starts."""
    java: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage] # no other way
    java.java.util.Locale.setDefault(java.java.util.Locale.forLanguageTag(language))


def test_the_tables_are_the_same_in_every_language(spark: SparkSession, tmp_path: Path):
    """A run in each language goes on with what the one before has left."""
    log, source = material.records(4, reports=24, steps=20), SqliteSource(tmp_path / "log.db")
    options = Options(partitions=material.PARTITIONS)
    for number, language in enumerate(LANGUAGES):
        begin, end = (each / len(LANGUAGES) for each in (number, number + 1))
        asyncio.run(material.write(source.path, material.part(log, begin, end)))
        speak(spark, language)
        Ingest(Lake(spark, str(tmp_path / "lake")), source, options).run_available()
    speak(spark, LANGUAGES[0])
    lake, whole = (Lake(spark, str(tmp_path / name)) for name in ("lake", "whole"))
    Ingest(whole, source, options).run_available()
    assert differences(lake, whole) == {}
    speak(spark, LANGUAGES[0])
    channel = Pinned(lake).table("bronze").where(f"topic = '{CHANNEL_TOPIC}'")
    found = audit(channel.select(*RAW.names), material.PARTITIONS).summary.collect()
    assert sum(row["violations"] for row in found) == 0
    assert sum(row["records"] for row in found) == sum(len(log[CHANNEL_TOPIC, n]) for n in range(material.PARTITIONS))
