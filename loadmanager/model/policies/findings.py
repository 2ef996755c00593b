"""What a check of a policy document finds, and what it is checked against. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from loadmanager.errors import Conflict
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle


class Known(msgspec.Struct, frozen=True):
    """What there is in the cluster at present."""

    brokers: Collection[str]
    """Names of the registered ones."""
    namespaces: Collection[str]
    bundles_of: Callable[[str], Sequence[Bundle]]
    """The bundles of a namespace; none if there is no such namespace."""
    settings: Settings


class Findings(msgspec.Struct, frozen=True):
    """`refused`: rules that nothing satisfies at present, each a sentence that names the rule. `notes`: remarks."""

    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def refuse(self, *, force: bool) -> None:
        """Raises Conflict with what is refused, unless it is forced."""
        if self.refused and not force:
            raise Conflict(f"{'; '.join(self.refused)}. Change it, or insist (?force=true, --force)")

    def plus(self, other: Findings) -> Findings:
        """Both."""
        return Findings((*self.refused, *other.refused), (*self.notes, *other.notes))
