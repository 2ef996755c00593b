"""The volumes of a pod, as folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stack.kubernetes.kubelet.environment import Misconfigured, Object, Objects, contents
from stack.kubernetes.kubelet.sandbox import Mount

_SOURCES = {"secret": ("secrets", "secretName"), "configMap": ("configmaps", "name")}


def volume_references(pod: Object) -> Iterator[tuple[str, str]]:
    """The objects that its volumes need, by resource and name."""
    for volume in pod["spec"].get("volumes", ()):
        for source, (resource, name) in _SOURCES.items():
            if source in volume:
                yield resource, volume[source][name]
        if "persistentVolumeClaim" in volume:
            yield "persistentvolumeclaims", volume["persistentVolumeClaim"]["claimName"]


def made(pod: Object, folder: Path, objects: Objects) -> dict[str, Path]:
    """The folder of each volume, made below `folder`; claims lead to their volume's. Raises Misconfigured."""
    return {volume["name"]: _made(pod, volume, folder, objects) for volume in pod["spec"].get("volumes", ())}


def _made(pod: Object, volume: Object, folder: Path, objects: Objects) -> Path:
    own = folder / volume["name"]
    own.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        os.chown(own, 0, pod["spec"].get("securityContext", {}).get("fsGroup", 0))
        own.chmod(0o2777)
        return own
    if "persistentVolumeClaim" in volume:
        claim = objects.get(("persistentvolumeclaims", volume["persistentVolumeClaim"]["claimName"]))
        if claim is None or "hostPath" not in claim["spec"]:
            raise Misconfigured(f"no folder of this machine is behind the claim of volume {volume['name']}")
        return Path(claim["spec"]["hostPath"]["path"])
    for source, (resource, name) in _SOURCES.items():
        if source in volume:
            _write(own, resource, volume[source][name], volume[source], objects)
            return own
    raise Misconfigured(f"not known here: a volume like {sorted(volume.keys() - {'name'})}")


def _write(folder: Path, resource: str, name: str, source: Object, objects: Objects) -> None:
    found = objects.get((resource, name))
    if found is None and not source.get("optional"):
        raise Misconfigured(f'{resource.removesuffix("s")} "{name}" not found')
    texts = contents(found) if found is not None else {}
    places = {each["key"]: each["path"] for each in source.get("items", ())} or {key: key for key in texts}
    for key, place in places.items():
        if key not in texts:
            raise Misconfigured(f"references non-existent {resource.removesuffix('s')} key: {key}")
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(texts[key])
        file.chmod(source.get("defaultMode", 0o644))


def mounts(container: Object, folders: dict[str, Path]) -> Iterator[Mount]:
    """Where a container finds them."""
    for each in container.get("volumeMounts", ()):
        source = folders[each["name"]] / each.get("subPath", "")
        if not source.exists():
            _make_like(source, folders[each["name"]])
        yield Mount(source, each["mountPath"].rstrip("/"), each.get("readOnly", False))


def _make_like(folder: Path, volume: Path) -> None:
    """A folder in a volume, with the rights of its root."""
    folder.mkdir(parents=True)
    rights = volume.stat()
    os.chown(folder, rights.st_uid, rights.st_gid)
    folder.chmod(rights.st_mode & 0o7777)
