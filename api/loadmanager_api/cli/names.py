"""Names on the command line: checked before anything is asked, and quoted for a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from loadmanager_api.cli.options import ParamType
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key, check_namespace, check_new_namespace

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class NamespaceType(ParamType[str]):
    """`tenant/namespace`."""

    name = "namespace"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_namespace(str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from loadmanager_api.cli.suggesting import namespaces

        return namespaces(ctx, incomplete)


class NewNamespaceType(NamespaceType):
    """One that is to be created."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_new_namespace(str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)


class BundleType(ParamType[Bundle]):
    """`tenant/namespace/0x00000000_0x40000000`."""

    name = "bundle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bundle:
        try:
            return Bundle.parse(str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from loadmanager_api.cli.suggesting import bundles

        return bundles(ctx, incomplete)


class BrokerType(ParamType[str]):
    """`host:port`; whether there is such a broker is the cluster's to say."""

    name = "broker"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from loadmanager_api.cli.suggesting import brokers

        return brokers(ctx, incomplete)


class TopicType(ParamType[Key]):
    """`tenant/namespace/name`, with or without `persistent://`."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Key:
        try:
            return Key.parse(str(value))
        except InvalidName as error:
            self.fail(str(error), param, ctx)


NAMESPACE = NamespaceType()
NEW_NAMESPACE = NewNamespaceType()
BUNDLE = BundleType()
BROKER = BrokerType()
TOPIC = TopicType()


def topic_path(topic: Key) -> str:
    """`persistent/tenant/namespace/name`, its local name quoted as one segment."""
    domain, _, rest = topic.full_name.partition("://")
    return f"{domain}/{topic.namespace}/{quote(rest.removeprefix(topic.namespace + '/'), safe='')}"


def segment(name: str) -> str:
    """One segment of a path."""
    return quote(name, safe=":[]")
