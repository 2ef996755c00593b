"""Names on the command line: checked before anything is asked, and quoted for a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from loadmanager_api.cli.options import ParamType
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key, check_namespace, check_new_namespace

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

T = TypeVar("T")


class NameType(ParamType[T]):
    """A name that `parse` reads, and that stands in a path as `in_path` writes it.

    The shell completes it with what the function `completed_by` of `suggesting` finds.
    """

    def __init__(self, name: str, parse: Callable[[str], T], completed_by: str, in_path: Callable[[T], str]) -> None:
        self.name = name
        self._parse = parse
        self._completed_by = completed_by
        self.in_path = in_path

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from loadmanager_api.cli import suggesting

        found: list[CompletionItem] = getattr(suggesting, self._completed_by)(ctx, incomplete)
        return found


def topic_path(topic: Key) -> str:
    """`persistent/tenant/namespace/name`, its local name quoted as one segment."""
    domain, _, rest = topic.full_name.partition("://")
    return f"{domain}/{topic.namespace}/{quote(rest.removeprefix(topic.namespace + '/'), safe='')}"


def segment(name: str) -> str:
    """One segment of a path."""
    return quote(name, safe=":[]")


NAMESPACE = NameType("namespace", check_namespace, "namespaces", str)
NEW_NAMESPACE = NameType("namespace", check_new_namespace, "namespaces", str)
BUNDLE = NameType("bundle", Bundle.parse, "bundles", str)
BROKER = NameType("broker", str, "brokers", segment)
"""`host:port`. The cluster checks that the broker exists."""
TOPIC = NameType("topic", Key.parse, "topics", topic_path)
"""`tenant/namespace/name`, with or without `persistent://`."""


def bundle_of(namespace: str, given: str) -> Bundle:
    """The bundle of a range; its full name, as the tables show it, will do as well. Raises UsageError."""
    try:
        return Bundle.of(namespace, given.removeprefix(f"{namespace}/"))
    except InvalidName as error:
        raise click.UsageError(str(error)) from None
