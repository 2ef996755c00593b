"""One line out of Spark's error text, which is pages of Java. Needs no Spark."""

from __future__ import annotations

import re

_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
_STATE = re.compile(r"(?<! ) *SQLSTATE: \w+")
_CALLING = "An error occurred while calling"


def gist(said: str) -> str:
    """Spark's named error condition if there is one, else the first line that says anything."""
    named = _CONDITION.search(said)
    lines = (line.strip().removeprefix(": ") for line in said.splitlines())
    words = named[0] if named else next((line for line in lines if line and not line.startswith(_CALLING)), "no reason")
    return _STATE.sub("", words).strip()
