"""The findings of a check of a policy document, and what it is checked against. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from loadmanager.errors import Conflict
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle


class Known(msgspec.Struct, frozen=True):
    """The present cluster."""

    brokers: Collection[str]
    """The names of the registered brokers."""
    namespaces: Collection[str]
    bundles_of: Callable[[str], Sequence[Bundle]]
    """The bundles of a namespace; none if there is no such namespace."""
    settings: Settings


class Findings(msgspec.Struct, frozen=True):
    """The result: `refused` names rules that nothing can satisfy at present, one sentence each; `notes` are remarks.

    `stranding` are those of `refused` that leave namespaces without any broker which the document is not about.
    """

    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stranding: tuple[str, ...] = ()

    def refuse(self, *, force: bool, strand: bool = False) -> None:
        """Raises Conflict with the refused rules, unless forced; `strand` lets those pass that are `stranding`."""
        refused = [each for each in self.refused if not (strand and each in self.stranding)]
        if refused and not force:
            raise Conflict(f"{'; '.join(refused)}. Change it, or insist (?force=true, --force)")

    def plus(self, other: Findings) -> Findings:
        """Both findings together."""
        return Findings(
            (*self.refused, *other.refused), (*self.notes, *other.notes), (*self.stranding, *other.stranding)
        )
