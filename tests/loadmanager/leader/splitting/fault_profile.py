"""Faults that no bundle is to blame for, at random, for `town.Town`."""

from __future__ import annotations

import random
from collections.abc import Callable

from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State
from tests.loadmanager.leader.splitting.town import Town

Fault = Callable[[Town], None]


def names(town: Town) -> list[str]:
    found = list(town.machines)
    town.dice.shuffle(found)
    return found


def back_s(dice: random.Random) -> float | None:
    """When a supervisor starts a killed process again; now and then never."""
    return dice.choice(
        [dice.uniform(0.5, 3), dice.uniform(3, 30), None if dice.random() < 0.3 else dice.uniform(30, 200)]
    )


def rolling_kills_each_after_all_is_served(town: Town) -> None:
    for _ in range(town.dice.randint(1, 3)):
        for name in names(town):
            town.run_until(town.all_served, 900)
            town.run(town.dice.uniform(0, 3))
            town.kill(name, town.dice.uniform(0.5, 20))


def rolling_kills(town: Town) -> None:
    every_s, back = town.dice.uniform(2, 60), town.dice.uniform(0.5, 30)
    for _ in range(town.dice.randint(1, 3)):
        for name in names(town):
            town.kill(name, back)
            town.run(every_s)


def kills_at_random(town: Town) -> None:
    mean_s = town.dice.choice([10, 30, 120, 400])
    for _ in range(town.dice.randint(3, 20)):
        town.run(town.dice.expovariate(1 / mean_s))
        town.kill(town.dice.choice(names(town)), back_s(town.dice) or 60.0)


def racks_lose_power(town: Town) -> None:
    racks = town.dice.randint(2, 4)
    for _ in range(town.dice.randint(1, 5)):
        dark = town.dice.randrange(racks)
        back = town.dice.uniform(1, 120)
        for i, name in enumerate(list(town.machines)):
            if i % racks == dark:
                town.kill(name, back + town.dice.uniform(0, 5))
        town.run(town.dice.uniform(1, 200))


def stops(town: Town) -> None:
    for _ in range(town.dice.randint(3, 15)):
        town.stop(town.dice.choice(names(town)), town.dice.uniform(2, 90))
        town.run(town.dice.expovariate(1 / town.dice.choice([5, 20, 60])))


def ports_and_sessions(town: Town) -> None:
    for _ in range(town.dice.randint(3, 15)):
        name = town.dice.choice(names(town))
        town.dice.choice([town.refuse, town.lose_session])(name, town.dice.uniform(0.5, 10))
        town.run(town.dice.expovariate(1 / town.dice.choice([5, 20, 60])))


def flapping(town: Town) -> None:
    """A machine that dies again and again, whatever it has."""
    name, mean_s, regular = town.dice.choice(names(town)), town.dice.uniform(3, 300), town.dice.random() < 0.5
    for _ in range(town.dice.randint(5, 30)):
        town.kill(name, town.dice.uniform(0.5, 5))
        town.run(mean_s if regular else town.dice.expovariate(1 / mean_s))


def moves(town: Town) -> None:
    for _ in range(town.dice.randint(5, 50)):
        town.run(town.dice.expovariate(1 / 5))
        town.transfer(town.dice.choice(town.bundles), town.dice.choice(names(town)))


def calm(town: Town) -> None:
    town.run(town.dice.uniform(10, 3000))


FAULTS: tuple[Fault, ...] = (
    rolling_kills_each_after_all_is_served,
    rolling_kills,
    kills_at_random,
    racks_lose_power,
    stops,
    ports_and_sessions,
    flapping,
    moves,
    calm,
)


def history(seed: int, **town: object) -> Town:
    """A cluster, and what befalls it: no bundle is to blame."""
    dice = random.Random(seed)
    made = Town(dice, dice.randint(1, 9), dice.choice([1, 2, 5, 12, 40]), **town)  # type: ignore[arg-type]
    made.run_until(made.all_served, 60)
    for _ in range(dice.randint(1, 4)):
        dice.choice(FAULTS)(made)
        if dice.random() < 0.3:
            made.new_leader(knows_processes=dice.random() < 0.5)
    made.run_until(made.all_served, 3_600)
    return made


def deadly(seed: int, chance: float, slowest_s: float) -> Town:
    """A cluster with one bundle that kills whoever is given it, with that chance, within seconds up to `slowest_s`; it
    is moved now and then. `town.deadly` is it."""
    dice = random.Random(seed)
    usual_s = slowest_s ** dice.random()

    def kills(bundle: Bundle, dice: random.Random) -> float | None:
        hits = bool(made.deadly) and bundle == poison and dice.random() < chance
        return usual_s * dice.uniform(0.5, 1) if hits else None

    made = Town(dice, dice.randint(1 if chance == 1 else 2, 9), dice.choice([1, 2, 5, 12, 40]), kills)
    poison = dice.choice(made.bundles)
    if dice.random() < 0.7:
        made.run_until(made.all_served)
        made.run(dice.uniform(60, 7200))
    made.deadly = poison
    for _ in range(100):
        entry = made.entry(poison)
        if made.locked:
            break
        if len(made.machines) == 1 and entry.state is State.ASSIGNED and entry.holder is not None:
            made.kill(entry.holder.name, 2.0)
        made.transfer(poison, dice.choice(names(made)))
        made.run_until(made.has_locked, dice.uniform(30, 900))
    return made
