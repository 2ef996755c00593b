"""CPU and memory of a limited cgroup (version 2): finds the group that counts and reads its files. Parsing is pure.

A process in a container may use less than the machine has, and a parent of its group may have the limit. The tightest
limit counts, with the usage of the group that has it: the kernel charges all of the container to that group.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


class Limits(msgspec.Struct, frozen=True):
    """The groups that limit this process, and their limits; None where there is none."""

    cpu_group: Path | None = None
    cores: float | None = None
    memory_group: Path | None = None
    memory_bytes: int | None = None


def parse_own_path(text: str) -> str | None:
    """The path of the version 2 group in the text of `/proc/self/cgroup`; None if there is none."""
    for line in text.splitlines():
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0" and path.startswith("/"):
            return path
    return None


def parse_cpu_max(text: str) -> float | None:
    """Cores that `cpu.max` ("quota period", in microseconds) allows; None for "max" and for malformed text."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period) or None


def parse_limit_bytes(text: str) -> int | None:
    """The limit in `memory.max`; None for "max"."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def parse_counter(text: str, name: str) -> int | None:
    """One counter of a file of "name value" lines (`cpu.stat`, `memory.stat`); None if it is missing."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def working_set_bytes(current: str, stat: str) -> int | None:
    """Memory that cannot simply be dropped: `memory.current` less inactive file pages, as Kubernetes counts it."""
    used = current.strip()
    if not used.isdigit():
        return None
    return max(0, int(used) - (parse_counter(stat, "inactive_file") or 0))


def find_limits(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> Limits:
    """The tightest limits on the way from the process's own group up to the root."""
    path = parse_own_path(read(own))
    if path is None:
        return Limits()
    group = root / path.lstrip("/")
    groups = [each for each in (group, *group.parents) if each.is_relative_to(root)]
    cores = [(value, each) for each in groups if (value := parse_cpu_max(read(each / "cpu.max"))) is not None]
    sizes = [(value, each) for each in groups if (value := parse_limit_bytes(read(each / "memory.max"))) is not None]
    cpu, memory = min(cores, default=(None, None)), min(sizes, default=(None, None))
    return Limits(cpu[1], cpu[0], memory[1], memory[0])


def cpu_used_us(group: Path) -> int | None:
    """CPU time that the group has used, microseconds; None if it cannot be read."""
    return parse_counter(read(group / "cpu.stat"), "usage_usec")


def memory_used_bytes(group: Path) -> int | None:
    """The group's working set; None if it cannot be read."""
    return working_set_bytes(read(group / "memory.current"), read(group / "memory.stat"))


def read(path: Path) -> str:
    """The file's text; empty if it cannot be read: a group may vanish, a kernel may lack a controller."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
