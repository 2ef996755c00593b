"""Errors of decision records that were read; such a record is skipped, since nothing is decided from one."""

from __future__ import annotations


class BadDecision(Exception):
    """The bytes are no decision record, or a damaged one."""


class NewerDecision(BadDecision):
    """An intact record of a newer release."""
