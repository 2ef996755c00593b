"""What can be asked of the load history: each analysis a file of its own, a function from DataFrames to a DataFrame.

`ANALYSES` has them by name; docs/analyses.md says of each what it asks, reads and answers, with its formulas.
"""

from __future__ import annotations

from loadmanager.history.analyses.analysis import DEFAULTS, Analysis, Options, Tables
from loadmanager.history.analyses.registry import ANALYSES

__all__ = ["ANALYSES", "DEFAULTS", "Analysis", "Options", "Tables"]
