"""Random faults of a run: to processes, links, servers and hosted services.

Each fault undoes itself after a while, so several overlap; `end` undoes all at once and for good. Single faults seldom
break a protocol: many of these are compounds, such as a broker that is wrongly suspected *and* cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from loadmanager.simulation.ambush import Ambush
from loadmanager.simulation.append_audit import CHANNEL_TOPIC
from loadmanager.simulation.cluster import PARTITIONS, SETTINGS, Cluster, Life
from loadmanager.simulation.coordination_server import COORDINATION_SERVER
from loadmanager.simulation.fault_profile import FaultProfile
from loadmanager.simulation.log_server import LOG_SERVER
from loadmanager.simulation.network import Faults, Latency
from loadmanager.simulation.replacing import Replacing
from loadmanager.simulation.simulated_host import GOOD_BEHAVIOUR, Behaviour
from loadmanager.simulation.world import World
from statechannel.ports import LogEntry, Payload

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
