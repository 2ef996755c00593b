"""Splits in small clusters of real nodes: owners that hang, die, leave or lose their proofs in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loadmanager.errors import Conflict, Unavailable
from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership
from tests.loadmanager.small_world import NAMESPACE, Nodes, Service, Started, virtually
from tests.simulator.world import World


class Knowing(Service):
    """Tells where its keys are when `answer` does."""

    def __init__(self, answer: Callable[[], Awaitable[list[int]]]) -> None:
        super().__init__()
        self.answer = answer

    async def positions(self, bundle: Bundle) -> list[int]:
        return await self.answer()


async def hangs() -> list[int]:
    await asyncio.Event().wait()
    return []


async def three(world: World, answer: Callable[[], Awaitable[list[int]]] = hangs) -> tuple[Nodes, Bundle]:
    """a, b and c; all that there is, one bundle, is b's."""
    nodes = Nodes(world)
    nodes.start("b:1", Knowing(answer))
    await nodes.ready("a:1", "c:1")
    b = nodes.by_name["b:1"]
    (bundle,) = await nodes.own_all(1, b)
    await world.until(
        lambda: all(entry_of(s, bundle).state is State.ASSIGNED for s in nodes.by_name.values()), 5, "known"
    )
    return nodes, bundle


def entry_of(started: Started, bundle: Bundle) -> Ownership:
    entry = started.node.channel.table.get(bundle)
    assert entry is not None
    return entry


def split_by_keys(asked: Started, bundle: Bundle) -> asyncio.Task[tuple[Bundle, ...]]:
    return asked.ask(lambda: asked.node.current.operations.split(bundle, algorithm=Algorithm.TOPIC_COUNT))


def served_by(nodes: Nodes, bundles: tuple[Bundle, ...]) -> set[tuple[str, ...]]:
    return {tuple(nodes.serving(bundle)) for bundle in bundles}


@virtually
async def test_an_owner_cuts_by_its_keys_and_serves_the_children(world: World):
    async def positions() -> list[int]:
        return [100, 200, 300, 400]

    nodes, bundle = await three(world, positions)
    children = await split_by_keys(nodes.by_name["a:1"], bundle)
    assert [child.hi for child in children] == [250, bundle.hi]
    await world.until(lambda: served_by(nodes, children) == {("b:1",)}, 1, "the children are served where it was")
    assert nodes.by_name["b:1"].service.calls[-3:] == ["release", "acquire", "acquire"]


@virtually
async def test_service_that_names_no_keys_in_time_calls_the_split_off(world: World):
    nodes, bundle = await three(world)
    with pytest.raises(Conflict, match=r"was not split: .* did not return within 2 s \(cancel by b:1#1\)"):
        await split_by_keys(nodes.by_name["a:1"], bundle)
    assert nodes.serving(bundle) == ["b:1"]


@virtually
async def test_a_split_whose_owner_does_nothing_is_called_off_by_the_leader(world: World):
    nodes, bundle = await three(world)
    a, b = nodes.by_name["a:1"], nodes.by_name["b:1"]
    reasons: list[str] = []

    def heard(change: Change) -> None:
        if any(transition.bundle == bundle for transition in change.transitions):
            reasons.append(change.record.reason)

    a.node.channel.listen(heard)
    b.node.current.agent._begin_asking_keys = lambda effect: None  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="within 8 s"):
        await split_by_keys(a, bundle)
    await world.until(lambda: entry_of(a, bundle).state is State.ASSIGNED, 3, "it is called off")
    assert reasons == ["admin", "stuck in flight"]
    assert nodes.serving(bundle) == ["b:1"]


@virtually
async def test_bundle_whose_owner_dies_in_a_split_is_served_whole_by_another(world: World):
    nodes, bundle = await three(world)
    a = nodes.by_name["a:1"]
    splitting = split_by_keys(a, bundle)
    await world.until(lambda: entry_of(a, bundle).state is State.SPLITTING, 1, "it is being split")
    world.crash("b:1")
    with pytest.raises(Conflict, match="was not split: orphan"):
        await splitting
    await world.until(lambda: nodes.serving(bundle) not in ([], ["b:1"]), 15, "another one serves it")


@virtually
async def test_an_owner_that_leaves_takes_its_children_away_too(world: World):
    nodes, bundle = await three(world)
    a, b = nodes.by_name["a:1"], nodes.by_name["b:1"]
    await world.until(lambda: len(b.node.membership.eligible()) == 3, 5, "its owner knows where bundles can go")
    splitting = a.ask(lambda: a.node.current.operations.split(bundle, parts=8))

    def is_split() -> bool:
        entry = b.node.channel.table.get(bundle)
        return entry is None or entry.state is State.SPLITTING

    await world.until(is_split, 5, "its owner has heard of the split")
    b.process.run(b.node.stop)
    children = await splitting
    await b.main
    assert len(children) == 8
    await world.until(lambda: served_by(nodes, children) <= {("a:1",), ("c:1",)}, 5, "the others serve them")


@virtually
async def test_namespace_is_recreated_while_its_bundles_split_and_merge(world: World):
    nodes, bundle = await three(world)
    a, b = nodes.by_name["a:1"], nodes.by_name["b:1"]
    children = await a.ask(lambda: a.node.current.operations.split(bundle, parts=4))
    await a.ask(lambda: a.node.current.operations.merge(children[:2]))
    await a.ask(lambda: a.node.current.operations.delete_namespace(NAMESPACE))
    held = nodes.by_name["b:1"].service.held
    await world.until(lambda: not held, 3, "nothing of it is left at its owner's service")
    (again,) = await nodes.own_all(1, b)
    assert again == bundle
    await world.until(lambda: nodes.serving(bundle) == ["b:1"], 3, "it is served again")
