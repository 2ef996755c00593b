"""What a container is started with: its environment and its command, as Kubernetes resolves them. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Object = dict[str, Any]
Objects = Mapping[tuple[str, str], Object | None]
"""ConfigMaps and Secrets of the namespace, by resource (`configmaps`, `secrets`) and name; None: there is none."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
_OWN = re.compile(r"(?<![\w.])(0\.0\.0\.0|127\.0\.0\.1)(?![\w.])|(?<==)(\[::\])?(?=:\d+$)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_SOURCES = {"configMap": "configmaps", "secret": "secrets"}


class Misconfigured(Exception):
    """The container cannot be started with what there is; says why in the words of a kubelet."""


def references(container: Object) -> Iterator[tuple[str, str]]:
    """The ConfigMaps and Secrets that its environment needs, by resource and name."""
    for each in container.get("envFrom", ()):
        for source, resource in _SOURCES.items():
            if f"{source}Ref" in each:
                yield resource, each[f"{source}Ref"]["name"]
    for each in container.get("env", ()):
        for source, resource in _SOURCES.items():
            if f"{source}KeyRef" in each.get("valueFrom", {}):
                yield resource, each["valueFrom"][f"{source}KeyRef"]["name"]


def environment(container: Object, pod: Object, objects: Objects, known: Mapping[str, str]) -> dict[str, str]:
    """Its variables; those in `known` come from the node, and are overridden. Raises Misconfigured."""
    found = dict(known)
    for each in container.get("envFrom", ()):
        for source, resource in _SOURCES.items():
            reference = each.get(f"{source}Ref")
            if reference is not None:
                texts = texts_of(resource, reference, objects)
                found |= {each.get("prefix", "") + key: text for key, text in texts.items()}
    for each in container.get("env", ()):
        if "valueFrom" in each:
            value = _value(each["valueFrom"], pod, objects)
            if value is None:
                continue
        else:
            value = here(expanded(each.get("value", ""), found), pod["status"]["podIP"])
        found[each["name"]] = value
    return found


def _value(source: Object, pod: Object, objects: Objects) -> str | None:
    if "fieldRef" in source:
        return field(source["fieldRef"]["fieldPath"], pod)
    for kind, resource in _SOURCES.items():
        reference = source.get(f"{kind}KeyRef")
        if reference is not None:
            texts = texts_of(resource, reference, objects)
            if reference["key"] in texts:
                return texts[reference["key"]]
            if reference.get("optional"):
                return None
            place = f"{kind[0].upper()}{kind[1:]} {pod['metadata']['namespace']}/{reference['name']}"
            raise Misconfigured(f"couldn't find key {reference['key']} in {place}")
    raise Misconfigured(f"not known here: env from {sorted(source)}")


def texts_of(resource: str, reference: Object, objects: Objects) -> dict[str, str]:
    """What a ConfigMap or Secret holds; nothing if it may be missing. Raises Misconfigured."""
    found = objects.get((resource, reference["name"]))
    if found is not None:
        return {key: value.decode() for key, value in contents(found).items()}
    if reference.get("optional"):
        return {}
    raise Misconfigured(f'{resource.removesuffix("s")} "{reference["name"]}" not found')


def contents(found: Object) -> dict[str, bytes]:
    """The data of a ConfigMap or Secret."""
    if found["kind"] == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    return {key: value.encode() for key, value in (found.get("data") or {}).items()}


def field(path: str, pod: Object) -> str:
    """A field of the pod, as `fieldRef` names it. Raises Misconfigured."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return pod["metadata"].get(keyed[1], {}).get(keyed[2], "")
    first, _, rest = path.partition(".")
    if rest not in {"name", "namespace", "uid", "nodeName", "serviceAccountName", "podIP", "hostIP"}:
        raise Misconfigured(f"not known here: the field {path}")
    return pod[first].get(rest, "")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """With `$(NAME)` replaced where the name is known; `$$` is a dollar."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)


def here(text: str, address: str) -> str:
    """With the addresses that are a pod's own (all, loopback) replaced: here the pods share one network stack."""
    return _OWN.sub(address, text)


def command(
    container: Object, entrypoint: Sequence[str], variables: Mapping[str, str], address: str
) -> tuple[str, ...]:
    """What is run: the image's entrypoint, unless it is overridden."""
    given = [*(container.get("command") or entrypoint), *container.get("args", ())]
    return tuple(here(expanded(each, variables), address) for each in given)


def service_links(services: Sequence[Object]) -> dict[str, str]:
    """The variables that pods get for the Services with an address, unless they have `enableServiceLinks: false`."""
    found = dict[str, str]()
    for service in services:
        address = service["spec"].get("clusterIP", "None")
        if address == "None" or not service["spec"].get("ports"):
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        ports = service["spec"]["ports"]
        found |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(ports[0]["port"])}
        found[f"{name}_PORT"] = f"{ports[0]['protocol'].lower()}://{address}:{ports[0]['port']}"
        for port in ports:
            if port.get("name"):
                found[f"{name}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["port"])
            prefix = f"{name}_PORT_{port['port']}_{port['protocol']}"
            found |= {prefix: f"{port['protocol'].lower()}://{address}:{port['port']}", f"{prefix}_ADDR": address}
            found |= {f"{prefix}_PROTO": port["protocol"].lower(), f"{prefix}_PORT": str(port["port"])}
    return found
