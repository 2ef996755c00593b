"""Scenarios that people can review: commands, and below each block the trace it must give.

A block is commands, a line `----`, the expected trace, an empty line. `REWRITE_SCENARIOS=1 pytest tests/scenarios`
writes the traces anew; the diff is the review. Commands:

    partitions N                            start with an empty log (once, first; 1 if absent)
    name x shop/orders/0x00000000_0x80000000    x stands for this bundle from here on
    ACTION [x y …] by=A#1 [as=leader|admin] [epoch=N] [to=B#1] [namespace=shop/orders] [cuts=0x…,0x…]
           [algorithm=name] [parts=N] [seen=N] [hand-off=text] [moved-to=name] [partition=N]
                                            append the record and replay it; `seen` is the present revision unless given
    copy N                                  append once more what stands at offset N
    foreign                                 append bytes that are no record
    table                                   every bundle: state, holder, target, revision, token, and who serves
    lookup TOPIC                            what a lookup gets
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from statechannel.errors import CorruptRecord
from statechannel.law import codec
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Change, Ownership, Refusal

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
SEPARATOR = "----"


class Scenario:
    """One log in one table. Each command returns the lines of its trace."""

    def __init__(self) -> None:
        self.table = OwnershipTable(1)
        self.names: dict[str, Bundle] = {}
        self.log: list[tuple[int, bytes]] = []

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        match command:
            case "partitions":
                assert not self.log, "partitions comes first"
                self.table = OwnershipTable(int(words[0]))
                return []
            case "name":
                self.names[words[0]] = Bundle.parse(words[1])
                return []
            case "copy":
                return self.append(*self.log[int(words[0])])
            case "foreign":
                return self.append(0, b"not a record")
            case "table":
                return [self.show(entry) for entry in sorted(self.table, key=lambda e: e.bundle)] or ["(no bundles)"]
            case "lookup":
                return [self.lookup(Key.parse(words[0]))]
            case _:
                return self.write(Action(command), words)

    def write(self, action: Action, words: list[str]) -> list[str]:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        bundles = [self.names[word] for word in words if "=" not in word]
        record, partition = self.record(action, bundles, options), options.pop("partition", None)
        home = self.table.partition_of(record.namespace or (bundles[0].namespace if bundles else ""))
        return self.append(home if partition is None else int(partition), codec.encode(record))

    def record(self, action: Action, bundles: list[Bundle], options: dict[str, str]) -> Record:
        known = {"by", "as", "epoch", "to", "namespace", "cuts", "seen", "hand-off", "partition", "cluster"}
        known |= {"algorithm", "parts", "moved-to"}
        assert options.keys() <= known, f"unknown option in {options}"
        seen = int(options["seen"]) if "seen" in options else None
        hand_off = options["hand-off"].encode() if "hand-off" in options else None
        namespace = self.table.namespace(options.get("namespace", ""))
        return Record(
            id=f"record-{len(self.log)}",
            action=action,
            actor=BrokerId.parse(options["by"]),
            role=Role(options.get("as", "broker")),
            epoch=int(options.get("epoch", 0)),
            subjects=tuple(Subject(b, self.revision(b) if seen is None else seen, hand_off) for b in bundles),
            to=BrokerId.parse(options["to"]) if "to" in options else None,
            namespace=options.get("namespace"),
            seen_namespace=seen if seen is not None else namespace.revision if namespace else NEVER,
            seen_latest=namespace.latest if namespace and action is Action.DELETE_NAMESPACE else NEVER,
            boundaries=tuple(int(cut, 16) for cut in options["cuts"].split(",")) if "cuts" in options else (),
            cluster=options.get("cluster"),
            algorithm=options.get("algorithm", ""),
            parts=int(options.get("parts", 0)),
            moved_to=options.get("moved-to", ""),
        )

    def append(self, partition: int, data: bytes) -> list[str]:
        """Through the codec, as a reader gets it; all invariants are checked after each record."""
        self.log.append((partition, data))
        offset = self.table.next_offset(partition)
        try:
            record = codec.decode(data)
        except CorruptRecord as error:
            self.table.skip(partition, offset)
            return [f"@{offset} skipped: {error}"]
        verdict = self.table.replay(partition, offset, record)
        self.table.check_invariants()
        return [f"@{offset} {line}" if at == 0 else line for at, line in enumerate(self.trace(record, verdict))]

    def trace(self, record: Record, verdict: Change | Refusal) -> list[str]:
        head = f"{record.action} by {record.actor}"
        if record.role is not Role.BROKER:
            head += f" as {record.role}"
        if isinstance(verdict, Refusal):
            return [f"{head}: refused", *(self.why_not(r) for r in (verdict, *verdict.others))]
        steps = [
            f"    {self.called(t.bundle)}: {self.brief(t.before, 'new')} -> {self.brief(t.after)}"
            for t in verdict.transitions
        ]
        return [f"{head}: accepted", *steps, *(self.why_not(refusal) for refusal in verdict.refused)]

    def why_not(self, refusal: Refusal) -> str:
        about = f"{self.called(refusal.bundle)}: " if refusal.bundle else ""
        winner = refusal.winner
        won = f" (won: @{winner.revision} {winner.action} by {winner.by})" if winner else ""
        return f"    {about}{refusal.reason}: {self.with_names(refusal.detail)}{won}"

    def show(self, entry: Ownership) -> str:
        more = f" hand-off={entry.hand_off.decode()}" if entry.hand_off is not None else ""
        more += f" algorithm={entry.algorithm} parts={entry.parts}" if entry.algorithm or entry.parts else ""
        about = f"{self.called(entry.bundle)} {self.brief(entry)} revision={entry.revision} token={entry.token}"
        return f"{about}{more}; {self.serves(entry)}"

    def lookup(self, topic: Key) -> str:
        entry = self.table.locate(topic)
        return f"{self.called(entry.bundle)}: {self.serves(entry)}" if entry else f"no namespace {topic.namespace}"

    def serves(self, entry: Ownership) -> str:
        if entry.state is State.UNASSIGNED:
            return "the next lookup assigns it"
        if entry.state is State.ASSIGNING:
            return f"deferred until {entry.holder} has acquired"
        return f"{entry.holder} serves" if entry.state in SERVING_STATES else "deferred"

    def brief(self, entry: Ownership | None, absent: str = "gone") -> str:
        if entry is None:
            return absent
        parties = f"({entry.holder}" + (f" to {entry.target})" if entry.target else ")") if entry.holder else ""
        return f"{entry.state}{parties}"

    def called(self, bundle: Bundle) -> str:
        return next((name for name, known in self.names.items() if known == bundle), str(bundle))

    def with_names(self, text: str) -> str:
        for name, bundle in self.names.items():
            text = text.replace(str(bundle), name)
        return text

    def revision(self, bundle: Bundle) -> int:
        entry = self.table.get(bundle)
        return entry.revision if entry else NEVER


def play(text: str) -> str:
    """The scenario with the traces that its commands give now."""
    scenario, out = Scenario(), []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        commands = lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
        active = [line for line in commands if not line.startswith("#")]
        trace = [line for command in active for line in scenario.run(command)]
        out.append("\n".join([*commands, SEPARATOR, *trace] if trace else commands))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path):
    written = path.read_text(encoding="utf-8")
    played = play(written)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played.splitlines() == written.splitlines()


def test_there_are_scenarios_and_a_wrong_trace_fails():
    assert len(SCENARIOS) >= 16
    text = SCENARIOS[0].read_text(encoding="utf-8")
    assert play(text.replace("accepted", "refused")) != text.replace("accepted", "refused")


def test_scenario_survives_cuts_anywhere_and_a_replica_that_starts_anew():
    for path in SCENARIOS:
        scenario = Scenario()
        for block in re.split(r"\n{2,}", path.read_text(encoding="utf-8").strip("\n")):
            for line in block.split(f"\n{SEPARATOR}")[0].split("\n"):
                if not line.startswith("#"):
                    scenario.run(line)
            replica = Scenario()
            replica.table = OwnershipTable(scenario.table.partitions)
            for partition, data in scenario.log:
                replica.append(partition, data)
            assert msgspec.to_builtins(list(replica.table)) == msgspec.to_builtins(list(scenario.table))
