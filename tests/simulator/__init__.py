"""Whole clusters in virtual time, with every fault, and invariants that are checked after each step."""

from __future__ import annotations
