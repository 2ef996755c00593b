"""Kinds of parameters in paths: what stands in the braces of `/v1/policies/{kind}/{name:document}`."""

from __future__ import annotations

from starlette.convertors import PathConvertor, register_url_convertor


class _Text(PathConvertor):
    """Anything, with slashes and, unlike Starlette's `path`, with line breaks."""

    regex = r"(?s:.*)"


class _Domain(PathConvertor):
    regex = "persistent|non-persistent"


class _DocumentName(PathConvertor):
    """Does not end in `/history`, unless it is that of a namespace `tenant/history`."""

    regex = r"[^/]*|(?<=/namespace/)[^/]+/history|(?s:.*)(?<!/history)"


class _NameWithHistory(PathConvertor):
    """Any name; that of a namespace has two parts, so that no path is a document's and a history's."""

    regex = r"(?s:(?<!/namespace/).*|[^/]*/.*)"


class _Matter(PathConvertor):
    """What Pulsar keeps for a namespace or a bundle, and a load manager does not: `retention`, `permissions/x`."""

    regex = (
        r"(?<!/antiAffinity/)(?:0x[^/]+/)?(?!(?:bundles|unload|split|antiAffinity|topicHashPositions)(?:/|$))"
        r"[a-z][A-Za-z]*(?:/(?s:.*))?"
    )


def register() -> None:
    """Have routes know them."""
    register_url_convertor("text", _Text())
    register_url_convertor("domain", _Domain())
    register_url_convertor("matter", _Matter())
    register_url_convertor("document", _DocumentName())
    register_url_convertor("with_history", _NameWithHistory())
