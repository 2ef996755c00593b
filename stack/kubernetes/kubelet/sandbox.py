"""A file system of its own for a process: this machine's programs, an own `/etc`, and the volumes of a pod.

The root is an empty one in memory, in a mount namespace that ends with its processes. Into it come the folders of
programs, those of the image under their own paths, and the volumes. Then the process gives up root, all capabilities,
and the right to get any back, as the security context of the pod says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/sys", "/dev")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "localtime", "alternatives", "ssl/openssl.cnf")
NAMES = "/run/names"
"""Where the folder with the hosts file is: a folder, so that the file in it can be replaced in one step."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine, and where the process finds it."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Sandbox:
    """`root` is an empty folder, `names` one with a file `hosts`."""

    root: Path
    names: Path
    mounts: tuple[Mount, ...] = ()
    user: int = 0
    group: int = 0
    folder: str = "/"
    read_only: bool = False

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs another one inside. It ends with the thread that started it."""
        script = "\n".join(["set -e", *self._mounting(), f"exec {shlex.join(self._dropping())} {_RUN}"])
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, self.folder, *arguments]

    def entering(self, pid: int, arguments: Sequence[str]) -> list[str]:
        """The command that runs another one where the process `pid` is."""
        inside = ["nsenter", f"--target={pid}", "--mount", "--", *self._dropping()]
        return [*inside, "sh", "-c", 'cd "$0"; exec "$@"', self.folder, *arguments]

    def _mounting(self) -> Iterator[str]:
        root = shlex.quote(str(self.root))
        yield f"mount -t tmpfs -o mode=755 pod {root}"
        for path in map(Path, SYSTEM):
            if path.is_symlink():
                yield f"ln -s {shlex.quote(str(path.readlink()))} {root}{path}"
            elif path.exists():
                yield self._bind(Mount(path, str(path)))
        yield f"mkdir -p {root}/etc/ssl {root}/run {root}/var"
        found = [name for name in ETC if Path("/etc", name).exists()]
        yield from (f"cp -a /etc/{name} {root}/etc/{name}" for name in found)
        yield f"echo 'hosts: files' >{root}/etc/nsswitch.conf; echo 'multi on' >{root}/etc/host.conf"
        yield f"ln -s {NAMES}/hosts {root}/etc/hosts"
        yield self._bind(Mount(self.names, NAMES, read_only=True))
        yield f"mkdir -m 1777 {root}/tmp"
        for mount in sorted(self.mounts, key=lambda mount: mount.target):
            yield self._bind(mount)
        if self.read_only:
            yield f"mount -o remount,ro {root}"

    def _bind(self, mount: Mount) -> str:
        source, target = shlex.quote(str(mount.source)), shlex.quote(f"{self.root}{mount.target}")
        making = f"mkdir -p {target}"
        if mount.source.is_file():
            making = f"mkdir -p $(dirname {target}); touch {target}"
        binding = f"{making}; mount --rbind {source} {target}"
        return f"{binding}; mount -o remount,bind,ro {target}" if mount.read_only else binding

    def _dropping(self) -> list[str]:
        who = [f"--reuid={self.user}", f"--regid={self.group}", "--clear-groups"]
        less = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL"]
        return ["chroot", str(self.root), "setpriv", *who, *less]


_RUN = """sh -c 'cd "$0"; exec "$@"' "$0" "$@\""""
