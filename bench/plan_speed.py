"""What a round of the strategy `plan` costs: time and memory by size, under policies of every kind and in 4 dimensions.

The model: log-normal bundles on brokers of unequal popularity; ten isolation policies and a hundred exclusions, sixteen
anti-affinity groups over three domains, bundle limits, drains, unknown brokers, pins, rests. `PLAN_SPEED_PNG=FILE` in
the environment draws the growth.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, overload

import msgspec
import numpy as np

from bench.figures import emit
from loadmanager.model.cluster import ALLOWED, DIMENSIONS, FREE, UNLIMITED, Brokers, Bundles, ClusterModel, Constraints
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan import Plan
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

BROKERS = 1_000
SIZES = (6_250, 12_500, 25_000, 50_000, 100_000)
MILLION = 1_000_000
NAMESPACES, POOLS, EXCLUSIONS, GROUPS = 2_000, 10, 100, 16
EVERYTHING = Settings(balancing_budget=1.0, balancing_moves_per_round=1_000_000)
"""No limit on a round: all that there is to do at once, the hardest case."""
ROUNDS = 3
TOP_N = 100


def run(kind: str) -> None:
    """All figures of this bench; it needs no log, so `kind` doesn't matter."""
    del kind
    Plan().decide(model(50, 1_000), EVERYTHING)  # loads the solver
    _one_dimension()
    took = [_figure(bundles, "< 0.3" if bundles == 100_000 else "", 0.3) for bundles in SIZES]
    emit(
        "plan-speed", f"growth from {SIZES[0]:,} to {SIZES[-1]:,} bundles", took[-1] / took[0], "times",
        target=f"close to linear: ≤ {SIZES[-1] // SIZES[0]}", met=took[-1] / took[0] <= SIZES[-1] / SIZES[0],
        seconds=[round(each, 4) for each in took],
    )  # fmt: skip
    million = model(BROKERS, MILLION)
    _figure(MILLION, "< 3", 3.0, top(million, TOP_N), f", of which the {TOP_N} largest of each broker are reported")
    all_of_them = _figure(MILLION, "", 0.0, million, ", all reported")
    if path := os.environ.get("PLAN_SPEED_PNG"):
        _draw(path, (*SIZES, MILLION), (*took, all_of_them))


def _figure(bundles: int, target: str, most_s: float, given: ClusterModel | None = None, which: str = "") -> float:
    """Seconds of the best of some rounds; memory is measured in a round of its own, as that makes it slow."""
    given = given or model(BROKERS, bundles)
    took_s, cpu_s, decision = _timed(given, EVERYTHING)
    limited_s, _, _ = _timed(given, Settings())
    tracemalloc.start()
    Plan().decide(given, EVERYTHING)
    mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    emit(
        "plan-speed", f"{BROKERS:,} brokers, {bundles:,} bundles{which}, policies, 4 dimensions", took_s, "s",
        target=target, met=took_s < most_s if target else None, cpu_s=round(cpu_s, 4), **_details(decision),
        mib=round(mib, 1), model_mib=round(_model_mib(given), 1), usual_round_s=round(limited_s, 4),
    )  # fmt: skip
    if target:
        whole = mib + _model_mib(given)
        name = f"memory of the round and its model, {bundles:,} bundles{which}"
        emit("plan-speed", name, whole, "MiB", target="< 500", met=whole < 500)
    return took_s


def _one_dimension() -> None:
    """One resource and no policy: what is moved against what had to."""
    given = model(BROKERS, 100_000, dimensions=1, policies=False)
    took_s, cpu_s, decision = _timed(given, EVERYTHING)
    assert decision.certificate is not None
    emit(
        "plan-speed", f"{BROKERS:,} brokers, 100,000 bundles, one dimension", took_s, "s",
        cpu_s=round(cpu_s, 4), **_details(decision),
    )  # fmt: skip
    ratio = decision.certificate.ratio
    emit("plan-speed", "load moved, one dimension", ratio, "times the bound", target="≤ 1.05", met=ratio <= 1.05)


def _timed(given: ClusterModel, settings: Settings) -> tuple[float, float, Decision]:
    """Seconds and CPU seconds, each of the best round, and the decision."""
    best_s, best_cpu_s, decision = float("inf"), float("inf"), None
    for _ in range(ROUNDS):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        decision = Plan().decide(given, settings)
        best_s = min(best_s, time.perf_counter() - begin)
        best_cpu_s = min(best_cpu_s, time.process_time() - cpu_begin)
    assert decision is not None
    return best_s, best_cpu_s, decision


def _details(decision: Decision) -> dict[str, Any]:
    certificate = decision.certificate
    return {
        "moves": len(decision.moves),
        "spread": [round(decision.spread_before, 3), round(decision.spread_after, 3)],
        "moved_to_bound": round(certificate.ratio, 4) if certificate else None,
    }


def _model_mib(given: ClusterModel) -> float:
    columns = (getattr(part, name) for part in (given.brokers, given.bundles) for name in part.__struct_fields__)
    arrays = [each for each in (*columns, *given.constraints.columns()) if isinstance(each, np.ndarray)]
    return sum(each.nbytes for each in arrays) / 2**20


class Names(Sequence[Bundle]):
    """A million bundles that are made when they are asked for: a million objects are not what is measured."""

    def __init__(self, namespace: np.ndarray) -> None:
        self._namespace = namespace

    def __len__(self) -> int:
        return len(self._namespace)

    @overload
    def __getitem__(self, at: int) -> Bundle: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Bundle]: ...
    def __getitem__(self, at: int | slice) -> Bundle | Sequence[Bundle]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        return Bundle(f"t/n{self._namespace[at]}", at * 0x100, (at + 1) * 0x100)


def model(brokers: int, bundles: int, *, seed: int = 1, dimensions: int = 4, policies: bool = True) -> ClusterModel:
    """A cluster at 40 % whose brokers hold between nothing and twice their part."""
    rng = np.random.default_rng(seed)
    namespace = rng.integers(0, NAMESPACES, bundles)
    constraints = _constraints(rng, brokers, namespace) if policies else _no_constraints(brokers, bundles)
    popularity = 0.2 + rng.random(brokers)
    allowed = constraints.forbidden == ALLOWED
    owner = np.empty(bundles, np.int64)
    for kind in range(len(allowed)):
        rows = np.flatnonzero(constraints.kind == kind)
        weights = popularity * allowed[kind]
        owner[rows] = rng.choice(brokers, len(rows), p=weights / weights.sum())
    stray = rng.random(bundles) < (0.001 if policies else 0.0)
    owner[stray] = rng.integers(0, brokers, int(stray.sum()))
    capacity, load = np.full((brokers, DIMENSIONS), np.inf), np.zeros((bundles, DIMENSIONS))
    for column, most in zip((0, 2, 3, 4)[:dimensions], (16.0, 1e9, 1e9, 1e5), strict=False):
        capacity[:, column] = most
        drawn = rng.lognormal(0.0, 1.0, bundles)
        load[:, column] = drawn / drawn.sum() * most * brokers * (0.4 if column == 0 else 0.3)
    used = np.zeros((brokers, DIMENSIONS))
    np.add.at(used, owner, load)
    return ClusterModel(
        _brokers(rng, capacity, used, owner, policies), _bundles(rng, owner, load, namespace, policies),
        _counted(constraints, owner, namespace),
    )  # fmt: skip


def top(given: ClusterModel, most: int) -> ClusterModel:
    """The same with the largest bundles of each broker only; the others are foreign load."""
    owner, load = given.bundles.owner, given.bundles.load[:, 0]
    order = np.lexsort((-load, owner))
    held = np.bincount(owner, minlength=len(given.brokers))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(held) - held, held)
    rows = np.sort(order[rank < most])
    number = {row: at for at, row in enumerate(rows.tolist())}
    columns = ("namespace", "owner", "load", "rate_msg_s", "throughput_bytes_s", "in_flight", "moved_s", "changed")
    bundles = msgspec.structs.replace(
        given.bundles,
        ids=Names(given.bundles.namespace[rows]),
        left={number[row]: brokers for row, brokers in given.bundles.left.items() if row in number},
        **{name: getattr(given.bundles, name)[rows] for name in columns},
    )
    columns = ("kind", "fixed", "rest_s", "weight", "group")
    constraints = msgspec.structs.replace(
        given.constraints, **{name: getattr(given.constraints, name)[rows] for name in columns}
    )
    return ClusterModel(given.brokers, bundles, constraints)


def _brokers(
    rng: np.random.Generator, capacity: np.ndarray, used: np.ndarray, owner: np.ndarray, policies: bool
) -> Brokers:
    n = len(capacity)
    held = np.bincount(owner, minlength=n).astype(np.int64)
    chance = rng.random(n) if policies else np.ones(n)
    return Brokers(
        ids=tuple(BrokerId(f"b{at:05}:6650", 1) for at in range(n)),
        capacity=capacity,
        used=used,
        known=chance > 0.01,
        draining=(chance > 0.01) & (chance < 0.013),
        paused=(chance > 0.02) & (chance < 0.03),
        bundles=held,
        max_bundles=np.where(rng.random(n) < 0.2, held + 20, UNLIMITED) if policies else np.full(n, UNLIMITED),
        rate_msg_s=np.zeros(n),
        throughput_bytes_s=np.zeros(n),
        domains=tuple(f"rack-{at % 3}" for at in range(n)),
        versions=("1.0",) * n,
    )


def _bundles(
    rng: np.random.Generator, owner: np.ndarray, load: np.ndarray, namespace: np.ndarray, policies: bool
) -> Bundles:
    m = len(owner)
    moved = rng.random(m) < (0.02 if policies else 0.0)
    return Bundles(
        ids=Names(namespace),
        namespaces=tuple(f"t/n{at}" for at in range(NAMESPACES)),
        namespace=namespace,
        owner=owner,
        load=load,
        rate_msg_s=np.zeros(m),
        throughput_bytes_s=np.zeros(m),
        in_flight=rng.random(m) < (0.001 if policies else 0.0),
        moved_s=np.where(moved, rng.random(m) * 3_600, np.inf),
        changed=np.zeros(m, np.bool_),
        left={int(row): (int(owner[row]) - 1,) for row in np.flatnonzero(moved) if owner[row]},
    )


def _no_constraints(brokers: int, bundles: int) -> Constraints:
    return Constraints(
        rules=(),
        kind=np.zeros(bundles, np.int64),
        forbidden=np.full((1, brokers), ALLOWED, np.int16),
        fixed=np.full(bundles, FREE, np.int16),
        rest_s=np.full(bundles, 1_800.0),
        weight=np.ones(bundles),
        group=np.full(bundles, FREE, np.int64),
    )


def _constraints(rng: np.random.Generator, brokers: int, namespace: np.ndarray) -> Constraints:
    """Each namespace is in a pool of brokers; a tenth of its bundles is excluded from some more."""
    m = len(namespace)
    pool = np.arange(brokers) % POOLS
    excluded = rng.integers(0, POOLS, EXCLUSIONS)
    forbidden = np.full((POOLS + EXCLUSIONS, brokers), ALLOWED, np.int16)
    for kind in range(POOLS + EXCLUSIONS):
        home = kind if kind < POOLS else int(excluded[kind - POOLS])
        forbidden[kind, pool != home] = home
        if kind >= POOLS:
            forbidden[kind, rng.integers(0, brokers, 5)] = POOLS
    home = namespace % POOLS
    some = np.array([np.flatnonzero(excluded == each)[0] if (excluded == each).any() else 0 for each in range(POOLS)])
    kind = np.where(rng.random(m) < 0.1, POOLS + some[home], home)
    return Constraints(
        rules=(*(f"isolation policy 'pool-{each}'" for each in range(POOLS)), "excluded", "pinned"),
        kind=kind.astype(np.int64),
        forbidden=forbidden,
        fixed=np.where(rng.random(m) < 0.01, POOLS + 1, FREE).astype(np.int16),
        rest_s=np.full(m, 1_800.0),
        weight=np.where(rng.random(m) < 0.1, 3.0, 1.0),
        group=np.where(namespace < 2 * GROUPS, namespace // 2, FREE),
        groups=tuple(f"group-{each}" for each in range(GROUPS)),
        spread_over_domains=True,
    )


def _counted(constraints: Constraints, owner: np.ndarray, namespace: np.ndarray) -> Constraints:
    if not constraints.groups:
        return constraints
    here = np.zeros((NAMESPACES, constraints.forbidden.shape[1]), np.int64)
    np.add.at(here, (namespace, owner), 1)
    grouped = here[: 2 * GROUPS] > 0
    return msgspec.structs.replace(constraints, namespace_here=here, presence=grouped[::2] + grouped[1::2].astype(int))


def _draw(path: str, sizes: Sequence[int], seconds: Sequence[float]) -> None:
    import altair

    values = altair.Data(values=[{"bundles": m, "seconds": s} for m, s in zip(sizes, seconds, strict=True)])
    chart = altair.Chart(values, title=f"A round of `plan`, {BROKERS:,} brokers").mark_line(point=True)
    x, y = altair.X("bundles:Q", scale=altair.Scale(type="log")), altair.Y("seconds:Q", scale=altair.Scale(type="log"))
    chart.encode(x, y).save(path)
