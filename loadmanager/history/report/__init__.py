"""The report: one HTML page that needs no network, and its pictures as PNGs.

    lake ─▶ collecting (Spark: buckets and tops, bounded) ─▶ material ─▶ charts_* (Altair) ─▶ drawing ─▶ page

Results of replay, audit and advice are taken as published; the report runs none of them. Drawing needs Altair and
vl-convert, of the extra `history`; neither making nor reading it fetches anything.
"""

from __future__ import annotations

from loadmanager.history.report.collecting import collect
from loadmanager.history.report.material import Found, Material
from loadmanager.history.report.page import Made, made

__all__ = ["Found", "Made", "Material", "collect", "made"]
