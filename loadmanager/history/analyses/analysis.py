"""What an analysis is, and its options: values only.

`run(tables, window, options)` gets every row of a table from `tables(name)` and cuts the window itself, because earlier
records say who holds a bundle at its begin. It builds a plan and runs nothing, so the caller may write the answer,
count it, or join it with more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from loadmanager.history.lake import Window
from loadmanager.model.load import DEFAULT_WEIGHTS, Weights, weights_of
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.merging import MERGE_BELOW
from loadmanager.strategies.splitting.splits import Limits

Table = Any
"""A pyarrow.Table; pyarrow ships no types."""
Tables = Callable[[str], DataFrame]
"""All rows of a table of `schemas.py`; empty where the table does not exist yet. `Lake.table` is one."""


class Options(msgspec.Struct, frozen=True):
    """Options of the analyses: production's settings, and how much to answer.

    `measure` is the resource of seasons and forecasts: a name of RESOURCES, except memory.
    """

    limits: Limits
    """What one bundle may carry before it is split."""
    weights: Weights = DEFAULT_WEIGHTS
    tolerance: float = 0.1
    rest_s: float = 1800.0
    merge_below: float = 0.1
    """A fraction of the limits."""
    namespace_min_bundles: int = 4
    namespace_max_bundles: int = 128
    measure: str = "cpu"
    top: int = 20
    """Hot bundles to show."""
    horizon_h: int = 24
    """How far forecasts go."""
    settle_s: float = 300.0
    """How long before and after a decision its effect is measured."""

    @staticmethod
    def of(settings: Settings) -> Options:
        """From the settings of a cluster."""
        return Options(
            limits=Limits.of(settings),
            weights=weights_of(settings),
            tolerance=settings.tolerance,
            rest_s=settings.bundle_rest_s,
            merge_below=MERGE_BELOW,
            namespace_min_bundles=settings.namespace_min_bundles,
            namespace_max_bundles=settings.namespace_max_bundles,
        )


DEFAULTS = Options.of(Settings.model_construct(None))
"""From the defaults of this release; reads no environment."""


class Analysis(msgspec.Struct, frozen=True):
    """One analysis.

    `needs` are the tables that it reads, so that a caller can tell why an answer is empty. `order` are the columns to
    sort by for people: `run` sorts nothing, `ordered` does. `text` is what both engines run (`texts.py`), and `finish`
    makes the answer of the text's rows, where SQL cannot.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    run: Callable[[Tables, Window, Options], DataFrame]
    order: tuple[str, ...]
    text: str
    finish: Callable[[Table, Options], Table] | None = None

    def ordered(self, tables: Tables, window: Window, options: Options) -> DataFrame:
        """The answer sorted by `order`, so that what is shown or cut off is the same each time."""
        return self.run(tables, window, options).orderBy(*self.order)
