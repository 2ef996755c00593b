"""Random faults of a run: to processes, links, servers and hosted services.

Each fault undoes itself after a while, so several overlap; `end` undoes all at once and for good. Single faults seldom
break a protocol: many of these are compounds, such as a broker that is wrongly suspected *and* cut off. How often each
fault and request happens is drawn anew for each run, or given by name to test a corner.

Some faults wait until a broker reaches a step of the work on snapshots, and strike in the middle of it. The steps are
requests to the log server; a fault strikes as the request arrives, or in the few milliseconds after. A simulated
operator replaces the agreement as `loadmanager channel agree` does, again until it succeeds. Each try is a process with
its own clock; it may die anywhere, and the next try goes on. Only one runs at a time: two would refuse each other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from loadmanager.channel.migration.agreement import replace_agreement
from loadmanager.channel.migration.move import Place
from loadmanager.errors import Conflict
from statechannel.errors import CoordinationUnavailable, ForeignCluster, ForeignRoot, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.ports import LogEntry, Payload
from tests.simulator.audits import CHANNEL_TOPIC
from tests.simulator.cluster import PARTITIONS, REQUEST_TIMEOUT_S, SETTINGS, Cluster, Life
from tests.simulator.loop import Process
from tests.simulator.network import Faults, Latency
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_host import GOOD_BEHAVIOUR, Behaviour
from tests.simulator.simulated_log import LOG_SERVER, Step
from tests.simulator.world import World

SWARM = (0, 0, 1, 1, 5)


class FaultProfile:
    """Weights of a run's faults and requests. `given`: only these, with these weights; else each run draws its own.

    Many of a few kinds and none of others finds more than a little of everything (Groce et al., Swarm Testing, ISSTA
    2012).
    """

    def __init__(self, random: Random, given: Mapping[str, int] | None = None) -> None:
        self._random = random
        self._given = given

    def weigh(self, usual: Mapping[str, int]) -> dict[str, int]:
        """The weights of this run, for choices that usually have these."""
        if self._given is not None:
            weights = {name: self._given.get(name, 0) for name in usual}
        else:
            weights = {name: weight * self._random.choice(SWARM) for name, weight in usual.items()}
        return weights if any(weights.values()) else dict(usual)


MIDDLE_S = 0.006
"""About as long as two or three requests: a fault within it may hit any step of the work after this one."""


class Trap(msgspec.Struct, frozen=True):
    """Calls `strike` with the life that reaches `step` next."""

    step: Step
    strike: Callable[[Life], None]


class Ambush:
    """Set traps. `schedule(delay_s, do, life)` calls `do(life)` unless the fault phase or the life is over."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        random: Random,
        schedule: Callable[[float, Callable[..., object], Any], None],
    ) -> None:
        self.struck: Counter[str] = Counter()
        """How often a fault struck, by step."""
        self._world = world
        self._cluster = cluster
        self._random = random
        self._schedule = schedule
        self.traps: list[Trap] = []
        world.log.on_step = self._reached

    def lay(self, strike: Callable[[Life], None]) -> None:
        """Set a trap at a step that is drawn now."""
        self.traps.append(Trap(self._random.choice(list(Step)), strike))

    def lift(self) -> None:
        """No traps from now on."""
        self.traps.clear()

    def _reached(self, step: Step, process: str) -> None:
        trap = next((trap for trap in self.traps if trap.step is step), None)
        life = next((life for life in self._cluster.alive() if life.process.name == process), None)
        if trap is None or life is None:
            return
        self.traps.remove(trap)
        self.struck[step] += 1
        self._world.trace.write(process, f"is met at: {step}")
        delay_s = self._random.choice((0.0, self._random.uniform(0, MIDDLE_S)))
        self._schedule(delay_s, trap.strike, life)


START_TIMEOUT_S = 5.0
AGAIN_S = 1.0
DEATH_CHANCE, LIVES_S = 0.3, (0.0, 6.0)
VALIDITIES_S = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Proof times to choose from; a session must last at least as long."""

Later = Callable[[float, Callable[..., object]], None]


class Replacing:
    """Starts replacements with `amend` and `lose_root`; `go_on` completes them. `later` is the fault phase's."""

    def __init__(self, world: World, cluster: Cluster, random: Random, later: Later) -> None:
        self.root_was_lost = False
        """From then on a broker may find a root that is not the log's, and end."""
        self.roots_lost = 0
        self.replaced = 0
        self._world = world
        self._cluster = cluster
        self._random = random
        self._later = later
        self._wanted_s: float | None = None
        """The wanted proof time; None: there is nothing to do."""
        self._tries = 0
        self._at_work: Process | None = None

    def amend(self) -> None:
        """Begin to replace the proof time."""
        self._wanted_s = self._random.choice(VALIDITIES_S)
        self._begin()

    def lose_root(self) -> None:
        """Delete all data of the coordination service, as an operator might; `replace_root` repairs that."""
        self.root_was_lost = True
        self.roots_lost += 1
        self._world.coordination.lose_everything()

    def replace_root(self) -> None:
        """Make an empty root the log's, with the same proof time or another one."""
        self._wanted_s = self._wanted_s or self._random.choice(VALIDITIES_S)
        self._begin()

    def go_on(self) -> None:
        """Begin again if the last try died in the middle, or if the lost root was not replaced."""
        if self.root_was_lost and self._world.coordination.identity() is None:
            self.replace_root()
        elif self._wanted_s is not None:
            self._begin()

    def _begin(self) -> None:
        if self._at_work is not None and not self._at_work.dead:
            return
        self._tries += 1
        name = f"operator~{self._tries}"
        process = self._at_work = self._world.process(name, drift=self._cluster.draw_drift())
        self._world.trace.write(name, f"replaces what is agreed on, V = {self._wanted_s} s")
        process.start(lambda: self._until_done(process))
        if self._random.random() < DEATH_CHANCE:
            self._later(self._random.uniform(*LIVES_S), lambda: self._die(process))

    def _die(self, process: Process) -> None:
        if not process.dead:
            self._world.trace.write(process.name, "crashes")
            process.crash()
            self._later(self._random.uniform(*LIVES_S), self.go_on)

    async def _until_done(self, process: Process) -> None:
        log = self._world.log_client(process, request_timeout_s=REQUEST_TIMEOUT_S)
        coordination = self._world.coordination_client(
            process, session_timeout_s=SETTINGS.session_timeout_s, request_timeout_s=REQUEST_TIMEOUT_S
        )
        place = Place(log, coordination, LOG_SERVER, COORDINATION_SERVER)
        started = False
        while (wanted_s := self._wanted_s) is not None:
            lost = self.roots_lost
            try:
                if not started:
                    await log.start(START_TIMEOUT_S)
                    await coordination.start(START_TIMEOUT_S)
                    started = True
                await self._replace(place, wanted_s, process)
            except (Conflict, LogUnavailable, CoordinationUnavailable, ForeignRoot, ForeignCluster) as error:
                self._world.trace.write(process.name, f"runs it again: {error}")
                await asyncio.sleep(AGAIN_S)
            else:
                if (self._wanted_s, self.roots_lost) == (wanted_s, lost):  # else another root or V is wanted by now
                    self._wanted_s = None

    async def _replace(self, place: Place, wanted_s: float, process: Process) -> None:
        def wanted(before: Agreement, root: str) -> Agreement:
            chosen = SETTINGS.model_copy(update={"proof_validity_s": wanted_s})
            return msgspec.structs.replace(before, root=root, proof_validity_s=wanted_s, margin_s=chosen.margin_s)

        def say(text: str) -> None:
            self._world.trace.write(process.name, text)

        replaced = await replace_agreement(
            place, SETTINGS.cluster, wanted, old=None, lost=self.root_was_lost, say=say, draw_id=self._draw_id
        )
        self.replaced += not replaced.was_done

    def _draw_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"


SERVERS = (LOG_SERVER, COORDINATION_SERVER)
RESTART_S = (0.0, 6.0)
SHORT_S, LONG_S = (0.05, 2.0), (2.0, 12.0)
BEYOND_RETENTION_S = (8.0, 14.0)

ECHOES, ECHOES_OF, ECHO_S = 30, 60, (0.0, 6.0)

SLOW = Latency(mean_s=0.05, spike_chance=0.1, spike_s=2.5)
LOSSY = Faults(lost_request=0.03, lost_answer=0.05, repeated=0.5, repeat_within_s=10.0)
CALM = Latency()


class FaultPhase:
    """Draws and undoes faults. Calls `links_changed` after each change of connectivity."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        random: Random,
        fault_profile: FaultProfile,
        links_changed: Callable[[], None],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._random = random
        self._links_changed = links_changed
        self._over = False
        self._ambush = Ambush(world, cluster, random, self._in)
        self.struck = self._ambush.struck
        self.replacing = Replacing(world, cluster, random, self._in)
        self._faults: dict[str, tuple[int, Callable[[Life], None]]] = {
            "crash": (4, self._crash),
            "pause": (4, self._pause),
            "cut one way": (3, self._cut_one_way),
            "cut": (3, self._cut_server),
            "isolate": (3, self._isolate),
            "outage": (2, self._outage),
            "expire": (2, self._expire_session),
            "slow": (2, self._slow_network),
            "lossy": (2, self._lossy_network),
            "behaviour": (3, self._bad_behaviour),
            "clock": (2, self._change_clock),
            "twin": (2, self._twin),
            "suspect": (6, self._suspect),
            "leader": (3, self._strike_leader),
            "stutter": (3, self._stutter),
            "echo": (4, self._echo),
            "snapshot": (6, self._lie_in_wait),
            "blackout": (1, self._blackout),
            "behind": (2, self._fall_behind),
            "hang": (2, self._hang),
            "lose root": (1, self._lose_root),
            "amend": (1, self._amend),
            "reject": (3, self._reject),
        }
        self.names = frozenset(self._faults)
        self._weights = fault_profile.weigh({name: weight for name, (weight, _) in self._faults.items()})
        self.per_s = random.choice((0.5, 1.0, 2.0))
        """Faults a second in this run."""

    def strike(self) -> None:
        """Inject one fault into one broker."""
        alive = [life for life in self._cluster.current.values() if not life.process.dead]
        if alive:
            name = self._random.choices(list(self._weights), list(self._weights.values()))[0]
            self._faults[name][1](self._random.choice(alive))

    def end(self) -> None:
        """Undo everything; dead brokers start again; of two lives of a name the older is killed."""
        self._over = True
        self._ambush.lift()
        world = self._world
        world.trace.write("fault phase", "ends")
        world.network.latency = CALM
        self._cluster.rejected = frozenset()
        for life in self._cluster.alive():
            life.lied_about, life.host.behaviour = False, GOOD_BEHAVIOUR
            if self._cluster.current[life.name] is not life:
                self._kill(life)
        world.heal_everything()
        self._links_changed()
        self.replacing.go_on()
        for name in self._cluster.current:
            self._start_again(name)

    def watch_over(self, name: str, life: Life) -> None:
        """Start a broker again some time after this life of it has ended."""
        if life.process.dead and self._cluster.current[name] is life:
            self._later(RESTART_S, self._start_again, name)

    # --- processes

    def _crash(self, life: Life) -> None:
        self._kill(life)
        self._later(RESTART_S, self._start_again, life.name)

    def _blackout(self, _life: Life) -> None:
        """All brokers crash: afterwards only the log and its snapshots know anything."""
        for life in self._cluster.alive():
            self._crash(life)

    def _kill(self, life: Life) -> None:
        if not life.process.dead:
            self._world.trace.write(str(life), "crashes")
            life.process.crash()

    def _start_again(self, name: str) -> None:
        if self._cluster.current[name].process.dead:
            self._cluster.start(name)

    def _pause(self, life: Life) -> None:
        self._stop_process(life)
        self._later(self._random.choice((SHORT_S, LONG_S)), self._go_on, life)

    def _stop_process(self, life: Life) -> None:
        self._world.trace.write(str(life), "is paused")
        life.process.pause()

    def _go_on(self, life: Life) -> None:
        if not life.process.dead:
            self._world.trace.write(str(life), "resumes")
            life.process.resume()

    def _hang(self, life: Life) -> None:
        """Its control loop hangs for longer than its session lasts; meanwhile its watchdog acts."""
        self._stop_process(life)
        self._in(SETTINGS.session_timeout_s, self._later, SHORT_S, self._wake_up, life)

    def _wake_up(self, life: Life) -> None:
        if life.node is not None:
            life.process.run(life.node.world.coordination.abandon)
            life.process.run(life.node.abandoned, "its loop hung")
        self._go_on(life)

    def _twin(self, life: Life) -> None:
        """A second process of the same name is started, while the first is paused, cut off, or well."""
        self._random.choice((self._pause, self._isolate, self._nothing))(life)
        self._later(SHORT_S, self._start_twin, life)
        self._later(LONG_S, self._kill, life)

    def _start_twin(self, life: Life) -> None:
        if self._cluster.current[life.name] is life and not self._over:
            self._cluster.start(life.name)

    def _change_clock(self, life: Life) -> None:
        self._cluster.change_drift(life)

    def _bad_behaviour(self, life: Life) -> None:
        behaviours = (Behaviour(hang_chance=0.3), Behaviour(raise_chance=0.4), Behaviour(slow_chance=0.7, slow_s=4.0))
        life.host.behaviour = self._random.choice(behaviours)
        self._world.trace.write(str(life), f"its service now behaves as {life.host.behaviour}")
        self._later(LONG_S, setattr, life.host, "behaviour", GOOD_BEHAVIOUR)

    # --- links and servers

    def _cut_one_way(self, life: Life) -> None:
        requests = self._random.random() < 0.4
        self._cut(life, self._random.choice(SERVERS), requests, not requests)

    def _cut_server(self, life: Life) -> None:
        self._cut(life, self._random.choice(SERVERS))

    def _isolate(self, life: Life) -> None:
        for server in SERVERS:
            self._cut(life, server)

    def _fall_behind(self, life: Life) -> None:
        """Cut off from the log alone: proofs to the other server keep its session, and the log is trimmed meanwhile."""
        if not any(self._world.network.is_cut(str(other), LOG_SERVER) for other in self._cluster.alive()):
            self._cut(life, LOG_SERVER, within_s=BEYOND_RETENTION_S)

    def _cut(
        self,
        life: Life,
        server: str,
        requests: bool = True,
        answers: bool = True,
        within_s: tuple[float, float] | None = None,
    ) -> None:
        way = "" if requests and answers else " (its requests)" if requests else " (the answers)"
        self._world.trace.write(str(life), f"is cut off from {server}{way}")
        self._world.network.cut(str(life), server, requests=requests, answers=answers)
        self._links_changed()
        self._later(within_s or self._random.choice((SHORT_S, LONG_S)), self._mend, life, server)

    def _mend(self, life: Life, server: str) -> None:
        self._world.trace.write(str(life), f"reaches {server} again")
        self._world.network.heal(str(life), server)
        self._links_changed()

    def _outage(self, _life: Life) -> None:
        server = self._random.choice(SERVERS)
        self._world.set_down(server, True)
        self._links_changed()
        self._later(self._random.choice((SHORT_S, LONG_S)), self._bring_up, server)

    def _bring_up(self, server: str) -> None:
        self._world.set_down(server, False)
        self._links_changed()

    def _expire_session(self, life: Life) -> None:
        self._world.expire_session(str(life))

    def _slow_network(self, _life: Life) -> None:
        self._world.trace.write("network", "is slow")
        self._world.network.latency = SLOW
        self._later(LONG_S, setattr, self._world.network, "latency", CALM)

    def _lossy_network(self, _life: Life) -> None:
        self._world.trace.write("network", "loses requests and answers")
        self._world.network.faults = LOSSY
        self._later(LONG_S, setattr, self._world.network, "faults", Faults(late=LOSSY.late))

    # --- what all agree on

    def _lose_root(self, _life: Life) -> None:
        """Nobody can be elected or revoked until an operator replaces the root after a while."""
        self.replacing.lose_root()
        self._later(self._random.choice((SHORT_S, LONG_S)), self.replacing.replace_root)

    def _amend(self, _life: Life) -> None:
        self.replacing.amend()

    # --- compounds

    def _suspect(self, life: Life) -> None:
        """Its port refuses connections although it runs, so that all others conclude that it is dead."""
        self._world.trace.write(str(life), "refuses connections from now on")
        life.lied_about = True
        self._later(LONG_S, setattr, life, "lied_about", False)
        compound = self._random.choice((self._nothing, self._pause, self._isolate, self._cut_server, self._cut_one_way))
        self._later(SHORT_S, compound, life)

    def _reject(self, life: Life) -> None:
        """A firewall rejects connections: from some brokers to one, between two racks, or all of them."""
        names = list(self._cluster.current)
        if len(names) < 2:
            return
        some = frozenset(self._random.sample(names, self._random.randint(1, len(names) - 1)))
        pairs = frozenset((one, other) for one in names for other in names if one != other)
        what, rejected = self._random.choice(
            (
                ("some connections to it", frozenset((one, life.name) for one in some if one != life.name)),
                ("connections between two racks", frozenset((x, y) for x, y in pairs if (x in some) != (y in some))),
                ("all connections between brokers", pairs),
            )
        )
        self._world.trace.write(str(life), f"a firewall rejects {what} from now on: {sorted(rejected)}")
        self._cluster.rejected = rejected
        self._later(LONG_S, setattr, self._cluster, "rejected", frozenset[tuple[str, str]]())

    def _strike_leader(self, _life: Life) -> None:
        leading = [x for x in self._cluster.ready() if x.node is not None and x.node.current.leader.leading]
        for leader in leading:
            self._random.choice((self._crash, self._pause, self._isolate, self._suspect, self._expire_session))(leader)

    def _lie_in_wait(self, _life: Life) -> None:
        """A fault in the middle of the work on a snapshot."""
        faults = (self._crash, self._fall_asleep, self._cut_log, self._cut_log, self._isolate, self._depose)
        self._ambush.lay(self._random.choice(faults))

    def _fall_asleep(self, life: Life) -> None:
        self._stop_process(life)
        self._later(LONG_S, self._go_on, life)

    def _cut_log(self, life: Life) -> None:
        """Cut the link to the log; requests may arrive late."""
        ways = ((True, True), (True, False), (False, True))
        self._cut(life, LOG_SERVER, *self._random.choice(ways))

    def _depose(self, life: Life) -> None:
        """Its leases end with its session; it learns of that at once or late."""
        self._expire_session(life)
        self._random.choice((self._nothing, self._pause, self._cut_log))(life)

    def _stutter(self, life: Life) -> None:
        """It is suspected; at about that time answers reach it late, and then it reaches nobody any more."""
        self._world.trace.write(str(life), "refuses connections from now on, and hears late")
        life.lied_about = True
        self._later(LONG_S, setattr, life, "lied_about", False)
        begins_s, lasts_s = self._random.uniform(0.3, 1.2), self._random.uniform(0.3, 0.95)
        call_later = self._world.loop.call_later
        call_later(begins_s, self._unless_over, self._delay_answers, (life,))
        call_later(begins_s + lasts_s, self._unless_over, self._only_hear, (life,))

    def _delay_answers(self, life: Life) -> None:
        self._cut(life, LOG_SERVER)
        self._cut(life, COORDINATION_SERVER, requests=False)

    def _only_hear(self, life: Life) -> None:
        self._mend(life, COORDINATION_SERVER)
        self._cut(life, COORDINATION_SERVER, answers=False)

    def _echo(self, _life: Life) -> None:
        """Records are appended again, as from a producer that did not hear that they were taken."""
        self._world.trace.write("network", "repeats old records")
        partition = self._random.randrange(PARTITIONS)
        log = self._world.log
        begin, end = log.begins(CHANNEL_TOPIC)[partition], log.ends(CHANNEL_TOPIC)[partition]
        recent = log.read(CHANNEL_TOPIC, partition, max(begin, end - ECHOES_OF))
        for entry in self._random.sample(recent, min(len(recent), ECHOES)):
            self._later(ECHO_S, self._repeat, entry)

    def _repeat(self, entry: LogEntry) -> None:
        if not self._world.network.is_down(LOG_SERVER):
            self._world.log.append(CHANNEL_TOPIC, entry.partition, [Payload(entry.key, entry.value)])

    def _nothing(self, _life: Life) -> None:
        """Nothing but the rest of the compound."""

    def _later(self, within_s: tuple[float, float], do: Callable[..., object], *args: Any) -> None:
        self._in(self._random.uniform(*within_s), do, *args)

    def _in(self, delay_s: float, do: Callable[..., object], *args: Any) -> None:
        self._world.loop.call_later(delay_s, self._unless_over, do, args)

    def _unless_over(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self._over and not (args and isinstance(args[0], Life) and args[0].process.dead):
            do(*args)
