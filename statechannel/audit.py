"""What an audit of an existing store reports.

An adapter looks at the settings of the store it was pointed at and says, thing by thing, what it
found and what the operator is to change. This module is the vocabulary only: it neither looks
nor prints, and an adapter's audit changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As the channel needs it."""
    WARNING = "warning"
    """The channel works, but loses availability, durability or speed that it could have."""
    ERROR = "error"
    """The channel cannot work, or may lose state, until this is changed."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that an audit looked at."""

    subject: str
    """What was looked at: `broker`, `topic bundle-state`, …"""
    severity: Severity
    found: str
    """What is there, as a sentence or `name=value`."""
    advice: str = ""
    """What to change; empty where nothing is."""
