"""`loadmanager plans`: changes that are looked at before they are made, advice of the load history too.

`loadmanager unload`: everything of a namespace or broker, in waves, which is a plan as well. `loadmanager balancing`,
`pause`, `resume`: the state of balancing, and pausing it. `loadmanager what-if`: what would be decided if something
were different, beside what is decided now; `plans preview` is a dry run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from loadmanager_api.cli.client import Failed, Query, ask, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.configuring import pairs
from loadmanager_api.cli.explanations import (
    at_option,
    clock,
    columns,
    heading,
    log_option,
    percent,
    show_brokers,
    show_moves,
)
from loadmanager_api.cli.names import BROKER, NAMESPACE, segment
from loadmanager_api.cli.options import asks_a_broker, changes, confirm, disrupts, shows
from loadmanager_api.cli.printing import age, done, echo, hanging, show, show_answer, show_pairs
from loadmanager_api.cli.rehearsing import rehearsed
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Given, Request, commands


def show_wish(remote: Remote, wish: Mapping[str, Any], query: Query | None = None) -> None:
    """Show what a round would decide under these conditions. It changes nothing, so a dry run asks it, too."""
    asking = msgspec.structs.replace(remote, dry_run=False)
    _show_differences(remote, run(ask(asking, "POST", "/v1/what-if", query=query, body=wish)))


def _show_differences(remote: Remote, found: dict[str, Any]) -> None:
    if not remote.for_people:
        show_answer(remote, found)
        return
    now, then = found["as_it_is"], found["changed"]
    changes = "; ".join(found["changes"]) or "nothing is different"
    echo(hanging("What if: ", "         ", changes), bold=True)
    echo(hanging("", "  ", then["decision"]["reason"]))
    heading("compared")
    columns(
        ("", "as it is", "with the change"),
        [
            ("moves", str(len(now["decision"]["moves"])), str(len(then["decision"]["moves"]))),
            ("load moved", percent(now["load_moved"]), percent(then["load_moved"])),
            ("spread before", percent(now["spread_before"]), percent(then["spread_before"])),
            ("spread after", percent(now["spread_after"]), percent(then["spread_after"])),
            ("mean usage", percent(now["mean"]), percent(then["mean"])),
            ("had to move", _bound(now), _bound(then)),
        ],
    )
    show_brokers(now, then)
    show_moves(then["decision"])
    for note in found["notes"]:
        echo(hanging("\nnote: ", "      ", note))


def _bound(projected: dict[str, Any]) -> str:
    certificate = projected["decision"]["certificate"]
    return "-" if certificate is None else f"{percent(certificate['bound'])} ({certificate['resource']})"


POLL_S = 0.3
OVER = (
    "done",
    "failed",
    "cancelled",
    "rejected",
    "expired",
    "superseded",
    "refused",
    "measuring",
    "undone",
    "verified",
)
"""States in which a run is over, even while the effect of a plan is still measured."""
SHOWN_MOVES = 50
FOR_PEOPLE = ("kind", "title")
"""What `history advise` prints besides the advice itself."""

author_option = click.option(
    "--author",
    default="",
    metavar="NAME",
    help="Your name, for the history.  [default: LOADMANAGER_AUTHOR, else your user name]",
)
reason_option = click.option("--reason", default="", metavar="TEXT", help="Reason, for the history.")


@click.command(short_help="Unload a whole namespace or broker, in waves.")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Unload this namespace.")
@click.option("--broker", metavar="HOST:PORT", type=BROKER, help="Unload everything that this broker holds.")
@click.option(
    "--to", metavar="HOST:PORT", type=BROKER, help="New owner of the bundles; without --to, lookups choose one."
)
@click.option(
    "--wave",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Number of bundles at a time.",
)
@click.option("--review", is_flag=True, help="Only propose the plan: it waits for approval.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the plan has started.")
@author_option
@reason_option
@disrupts
def unload(
    remote: Remote,
    namespace: str | None,
    broker: str | None,
    to: str | None,
    wave: int,
    review: bool,
    no_wait: bool,
    author: str,
    reason: str,
) -> None:
    """Unload all bundles of a namespace or broker in waves; each wave waits for the one before.

    The plan goes on if you stop this command: `loadmanager plans cancel` stops the plan.
    """
    if (namespace is None) == (broker is None):
        raise click.UsageError("give either --namespace or --broker")
    body = {"namespace": namespace, "broker": broker, "to": to, "wave": wave, "review": review}
    body |= {"author": author, "reason": reason}
    if not review:
        confirm(remote, f"This takes all bundles of {namespace or broker} from their owners, {wave} at a time")
    found = run(ask(remote, "POST", "/v1/plans/unload", body=body))
    if not (review or no_wait):
        if remote.for_people:
            echo(f"this is plan {found['id']}; to stop it: loadmanager plans cancel {found['id']}", err=True)
        found = run(_wait(remote, found))
    _told(remote, found)


async def _wait(remote: Remote, found: dict[str, Any]) -> dict[str, Any]:
    """Until it is over; progress goes to the terminal."""
    told = ""
    while found["state"] not in OVER:
        counts = _counts(found)
        if remote.for_people and counts != told:
            told = counts
            echo(f"{found['state']}: {counts}", err=True)
        await asyncio.sleep(POLL_S)
        found = await ask(remote, "GET", _path(found["id"]))
    return found


def _act(remote: Remote, plan_id: str, action: str, author: str, reason: str) -> dict[str, Any]:
    body = {"author": author, "reason": reason}
    answer: dict[str, Any] = run(ask(remote, "POST", f"{_path(plan_id)}/{action}", body=body))
    return answer


def _path(plan_id: str) -> str:
    return f"/v1/plans/{segment(plan_id)}"


def _told(remote: Remote, found: dict[str, Any]) -> None:
    """One line; what did not come off is listed."""
    what = found["what"] if found["advice"] else _counts(found)
    done(remote, f"plan {found['id']} is {found['state']}: {what}", **found)
    if remote.for_people:
        for move in found["planned"]:
            if move["outcome"] in ("failed", "skipped"):
                echo(hanging(f"  {move['outcome']}: {move['bundle']}: ", "    ", move["detail"]), err=True)
    if found["state"] == "failed":
        raise Failed(f"plan {found['id']} did not end as planned; see: loadmanager plans show {found['id']}")


def _show(remote: Remote, found: dict[str, Any], *, all_moves: bool) -> None:
    certificate = found["certificate"]
    pairs: list[tuple[str, object]] = [
        ("plan", found["id"]),
        ("kind", found["kind"]),
        ("state", found["state"] + (f": {found['waiting']}" if found["waiting"] else "")),
        ("what", found["what"]),
        ("pieces" if found["advice"] else "moves", _counts(found)),
        ("proposed", f"{age(found['proposed_ms'])} ago by {found['author']}"),
        ("reason", found["reason"]),
        ("you may", ", ".join(found["may"]) or "nothing more"),
    ]
    if found["strategy"]:
        pairs.append(("strategy", found["strategy"]))
    if found["undoes"]:
        pairs.append(("undoes", found["undoes"]))
    if certificate:
        pairs.append(("certificate", certificate["text"]))
    pairs += _promised(found["advice"]) if found["advice"] else []
    show_pairs(remote, found, pairs)
    if not remote.for_people:
        return
    if found["steps"]:
        echo()
        steps = [(s["action"], age(s["at_ms"]), s["author"], s["reason"]) for s in found["steps"]]
        show(remote, found, ("step", "age", "by", "why"), steps)
    if not found["planned"]:
        return
    echo()
    moves = found["planned"] if all_moves else found["planned"][:SHOWN_MOVES]
    rows = [
        (m["bundle"], m["source"], m["destination"], m["stage"], m["outcome"], m["detail"] or m["reason"])
        for m in moves
    ]
    show(remote, found, ("bundle", "from", "to", "stage", "", "why"), rows)
    if len(moves) < len(found["planned"]):
        echo(f"and {len(found['planned']) - len(moves)} more: --all", err=True)
    for bundle, why in found["left_out"].items():
        echo(hanging(f"  left out: {bundle}: ", "    ", why))
    _show_figures(remote, found)


def _promised(advice: dict[str, Any]) -> list[tuple[str, object]]:
    """Where it comes from, what it promises, and what came of it."""
    expected, origin, effect = advice["expected"], advice["provenance"], advice["effect"]
    promised = f"{expected['measure']} {expected['before']:.3g} → {expected['after']:.3g}"
    tables = ", ".join(f"{name} v{version}" for name, version in origin["tables"].items())
    times = f"from {age(origin['data_from_ms'])} ago to {age(origin['data_to_ms'])} ago"
    pairs: list[tuple[str, object]] = [
        ("promises", f"{promised}, better by {expected['low']:.3g} to {expected['high']:.3g} (95 %)"),
        ("made by", f"{origin['job']} {origin['job_version']}, {origin['method']}"),
        ("of data", f"of {origin['cluster']}, {times}"),
    ]
    if tables:
        pairs.append(("tables", tables))
    if effect:
        pairs += [("effect", effect["text"]), ("measured", f"{effect['measured_from']} to {effect['measured_to']}")]
    return pairs


def _show_figures(remote: Remote, found: dict[str, Any]) -> None:
    verified: dict[str, Any] = found["verification"] or {}
    columns: list[dict[str, Any]] = [
        found["before"],
        found["predicted"],
        verified.get("actual") or {"usages": {}, "spread": None},
    ]
    names = sorted({name for each in columns for name in each["usages"]})
    if not names:
        return
    rows = [(name, *(_percent(each["usages"].get(name)) for each in columns)) for name in names]
    rows.append(("spread", *(_percent(each["spread"]) for each in columns)))
    echo()
    show(remote, found, ("usage", "before", "predicted", "verified"), rows)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def _counts(found: dict[str, Any]) -> str:
    return ", ".join(f"{count} {status}" for status, count in found["counts"].items()) or "none"


def _show_preview(remote: Remote, found: dict[str, Any]) -> None:
    if not remote.for_people:
        show_answer(remote, found)
        return
    projected = found["projection"]
    echo(f"{found['strategy']} would decide now, {clock(found['at_ms'])}:", bold=True)
    echo(hanging("", "  ", projected["decision"]["reason"]))
    show_moves(projected["decision"])
    show_brokers(projected)


def _show_verified(remote: Remote, found: dict[str, Any]) -> None:
    if not remote.for_people:
        show_answer(remote, found)
        return
    seen = found["verification"]
    echo(f"plan {found['id']} is {found['state']}: {seen['holding']} moves hold, {len(seen['moved_on'])} do not")
    for bundle, where in seen["moved_on"].items():
        echo(hanging(f"  {bundle}: ", "    ", where))
    _show_figures(remote, found)


_PLAN = click.argument("plan_id", metavar="PLAN")
_STEP = (_PLAN, author_option, reason_option)
_AT = "/v1/plans"

ROWS = (
    Request("list", f"GET {_AT}", "List plans, newest first.", (click.option("--limit", metavar="N",
        type=click.IntRange(1, 1_000), default=20, show_default=True, help="Number of plans at most."),
        click.option("--kind", type=click.Choice(["balance", "unload", "undo", "advice"]),
        help="Only plans of this kind.")), columns={"plan": "id", "kind": "kind", "state": "state", "what": "what",
        "of it": _counts, "age": lambda each: age(each["proposed_ms"]), "by": "author",
        "you may": lambda each: ", ".join(each["may"]), "why": lambda each: each["waiting"] or each["reason"]},
        empty="no plans; `loadmanager history advise` makes some"),
    Request("preview", "GET /v1/plan",
        "Show what a round of balancing would do at this moment: a dry run. Changes nothing, and proposes nothing.",
        view=_show_preview),
    Request("reject", f"POST {_AT}/{{plan_id}}/reject", "Reject a plan: it may not run.", _STEP, view=_told),
    Request("cancel", f"POST {_AT}/{{plan_id}}/cancel", "Start no more moves of a plan; moves under way finish.",
        _STEP, view=_told),
    Request("verify", f"POST {_AT}/{{plan_id}}/verify",
        "Show which moves of a plan still hold, and the actual usage of its brokers beside the predicted one.",
        (_PLAN, author_option), body=lambda given: {"author": given["author"], "reason": ""}, view=_show_verified),
    Request("undo", f"POST {_AT}/{{plan_id}}/undo",
        "Propose a plan that undoes a plan. Bundles that have moved since stay; they are listed with their place.",
        _STEP, view=lambda remote, found: _show(remote, found, all_moves=False)),
    Request("withdraw", f"POST {_AT}/{{plan_id}}/withdraw",
        "Undo a plan at once, except what was changed since. `undo` proposes this for review.", _STEP,
        confirm="This undoes plan {plan_id} at once", view=_told),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def plans() -> None:
    """Review changes before they are made: propose, approve, run, verify, undo.

    The leader runs approved advice of the load history by itself, measures the effect, and undoes advice that did harm.
    See docs/plans.md.
    """


@plans.command(short_help="Propose what the strategy would do now.")
@click.option("--strategy", metavar="NAME", help="Strategy for this plan.  [default: the cluster's]")
@click.option(
    "--tolerance",
    metavar="TOLERANCE",
    help="Tolerance for this plan: tight, default, loose, or a fraction.  [default: the cluster's]",
)
@author_option
@reason_option
@changes
def propose(remote: Remote, strategy: str | None, tolerance: str | None, author: str, reason: str) -> None:
    """Propose what the strategy would do now."""
    body = {"strategy": strategy, "tolerance": _tolerance(tolerance), "author": author, "reason": reason}
    body = {name: value for name, value in body.items() if value is not None}
    if remote.dry_run:
        settings = {"balancing_strategy": strategy, "balancing_tolerance": body.get("tolerance")}
        show_wish(remote, {"settings": {name: value for name, value in settings.items() if value is not None}})
        return
    _show(remote, run(ask(remote, "POST", "/v1/plans", body=body)), all_moves=False)


def _tolerance(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@plans.command(short_help="Propose advice from a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@changes
def publish(remote: Remote, file: Path) -> None:
    """Propose the advice of a JSON file (`-`: standard input), as `history advise -o json` prints it."""
    try:
        with click.open_file(str(file), encoding="utf-8") as opened:
            wishes = json.load(opened)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{file} is not valid JSON: {error}") from None
    if isinstance(wishes, dict) and "advice" in wishes:
        wishes = wishes["advice"]
    for wish in wishes if isinstance(wishes, list) else [wishes]:
        body = {key: value for key, value in wish.items() if key not in FOR_PEOPLE} if isinstance(wish, dict) else wish
        with rehearsed(remote):  # a dry run shows the next one, too
            _told(remote, run(ask(remote, "POST", "/v1/plans/advice", body=body)))


@plans.command("show")
@click.argument("plan_id", metavar="PLAN")
@click.option("--all", "all_moves", is_flag=True, help=f"Show all moves, not only {SHOWN_MOVES}.")
@shows
def show_(remote: Remote, plan_id: str, all_moves: bool) -> None:
    """Show a plan: its moves, their outcome, and what you may do with the plan now."""
    _show(remote, run(ask(remote, "GET", _path(plan_id))), all_moves=all_moves)


@plans.command(short_help="Approve a plan: it may run.")
@click.argument("plan_id", metavar="PLAN")
@click.option("--run", "and_run", is_flag=True, help="Run the plan at once.")
@author_option
@reason_option
@disrupts
def approve(remote: Remote, plan_id: str, and_run: bool, author: str, reason: str) -> None:
    """Approve a plan: it may run. Refused if another user has decided on the plan meanwhile."""
    if and_run and remote.dry_run:
        echo(f"first this, then POST {_path(plan_id)}/run:", err=True)
    if and_run:
        confirm(remote, f"This makes the moves of plan {plan_id}")
    found = _act(remote, plan_id, "approve", author, reason)
    if and_run and not found["advice"]:  # which the leader runs by itself
        found = _act(remote, plan_id, "run", author, reason)
    _told(remote, found)


@plans.command("run", short_help="Have the leader make the moves of a plan.")
@click.argument("plan_id", metavar="PLAN")
@click.option("--wait", is_flag=True, help="Wait until the plan is over; fail if a move failed.")
@author_option
@reason_option
@disrupts
def run_(remote: Remote, plan_id: str, wait: bool, author: str, reason: str) -> None:
    """Have the leader make the moves of a plan, under the limits. Bundles that have moved since are left alone."""
    confirm(remote, f"This makes the moves of plan {plan_id}")
    found = _act(remote, plan_id, "run", author, reason)
    _told(remote, run(_wait(remote, found)) if wait else found)


def _show_status(remote: Remote, found: dict[str, Any]) -> None:
    limits, last = found["limits"], found["last"]
    by_broker = ", ".join(f"{name} {count}" for name, count in sorted(found["in_flight"]["by_broker"].items()))
    pairs: list[tuple[str, object]] = [
        ("balancing", "off" if not found["balancing"] else "on, each move is reviewed" if found["review"] else "on"),
        ("strategy", found["strategy"]),
        ("spread", f"{100 * found['spread']:.1f} % above the mean, tolerance {100 * found['tolerance']:.1f} %"),
        ("paused", _paused(found["paused"])),
        ("under way", f"{found['in_flight']['total']} of {limits['total']}{f' ({by_broker})' if by_broker else ''}"),
        ("open plans", ", ".join(f"{p['id']} ({p['state']})" for p in found["open_plans"])),
    ]
    if last:
        pairs.append(("last round", f"{last['id']}, {age(last['at_ms'])} ago, by {last['leader']}: {last['reason']}"))
        if last["certificate"]:
            pairs.append(("certificate", last["certificate"]["text"]))
    show_pairs(remote, found, pairs)
    if not remote.for_people or not last:
        return
    rows = [
        (m["bundle"], m["source"], m["destination"], m["stage"], m["outcome"], m["detail"] or m["reason"])
        for m in last["moves"]
    ]
    if rows:
        echo()
        show(remote, found, ("bundle", "from", "to", "stage", "", "why"), rows)
    for line in found["held"]:
        echo(hanging("  held back: ", "    ", line))


def _paused(paused: Mapping[str, Any]) -> str:
    words = [*([f"the cluster ({paused['reason'] or 'no reason given'})"] if paused["cluster"] else [])]
    return ", ".join([*words, *paused["namespaces"], *paused["brokers"]]) or "nothing"


def _scope(given: Given) -> Given:
    if given["namespace"] is not None and given["broker"] is not None:
        raise click.UsageError("give --namespace or --broker, not both")
    return given


def _told_pause(verb: str) -> Callable[[Given], str]:
    def told(known: Given) -> str:
        what = known["namespace"] or known["broker"] or "the cluster"
        changed = verb if known["changed"] or verb == "is paused" else "was not paused"
        return f"{what} {changed}; paused now: {_paused(known)}"

    return told


_SCOPE = (
    click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace."),
    click.option("--broker", metavar="HOST:PORT", type=BROKER, help="Only moves from and to this broker."),
    author_option,
    reason_option,
)

BALANCING_ROWS = (
    Request("status", "GET /v1/balancing",
        "Show what the last round decided, what is under way, paused or held back, and how uneven the usage is.",
        view=_show_status),
    Request("pause", "POST /v1/balancing/pause",
        "Start no more automatic moves, nor moves of plans: of a namespace, from and to a broker, or of the cluster.",
        _SCOPE, body=_scope, done=_told_pause("is paused")),
    Request("resume", "POST /v1/balancing/resume", "End the pause of a namespace, a broker, or the cluster.", _SCOPE,
        body=_scope, done=_told_pause("is no longer paused")),
)  # fmt: skip

_status, pause, resume = commands(BALANCING_ROWS)
balancing = Group("balancing", commands=[_status], help="Show the state of balancing.")


@click.command("what-if", short_help="Show what a round would decide under other conditions.")
@click.option("--add-brokers", type=click.IntRange(0, 1_000), default=0, metavar="N", help="Number of brokers to add.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="NAME=VALUE",
    help="Capacity of each added broker (cpu=8, …); repeatable.  [default: the median]",
)
@click.option(
    "--remove-broker", "remove", multiple=True, type=BROKER, metavar="BROKER", help="Without this broker; repeatable."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="With this setting; repeatable.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=NAMESPACE,
    help="With --times the load of this namespace; repeatable.",
)
@click.option(
    "--times",
    metavar="FACTOR",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Factor for the load of each --namespace.",
)
@click.option(
    "--policy", multiple=True, metavar="KIND/NAME=JSON", help="With this policy, or without it (`null`); repeatable."
)
@click.option("--rested", is_flag=True, help="As if no bundle had moved lately, so that none has to rest.")
@at_option
@log_option
@asks_a_broker
def what_if(
    remote: Remote,
    add_brokers: int,
    capacity: tuple[str, ...],
    remove: tuple[str, ...],
    settings: tuple[str, ...],
    namespaces: tuple[str, ...],
    times: float,
    policy: tuple[str, ...],
    rested: bool,
    at_ms: int | None,
    log: str | None,
) -> None:
    """Show what a round would decide under other conditions, beside what it decides now. Changes nothing.

    For example: what-if --add-brokers 3; what-if --set balancing_tolerance=tight; what-if --namespace shop/carts
    --times 2; what-if --policy 'isolation/pay={"namespaces": ["pay/.*"], "primary": ["a:.*"]}'.
    """
    wish = {
        "add_brokers": add_brokers,
        "capacity": _numbers(capacity),
        "remove_brokers": list(remove),
        "settings": pairs(settings, "--set"),
        "loads": dict.fromkeys(namespaces, times),
        "policies": _documents(policy),
        "rested": rested,
    }
    if log is None:
        show_wish(remote, wish, {"at": at_ms})
        return
    from loadmanager.decisions.explaining.what_if import Edits
    from loadmanager_api.cli.explain_offline import asked

    edits = msgspec.convert(wish, Edits)
    _show_differences(remote, asked(log, (), lambda explainer: explainer.what_if(edits, at_ms)))


def _numbers(given: tuple[str, ...]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in pairs(given, "--capacity").items()}
    except ValueError as error:
        raise click.UsageError(f"--capacity: {error}; write cpu=8") from None


def _documents(given: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        try:
            found[key] = json.loads(value) if equals else None
        except ValueError as error:
            raise click.UsageError(f"--policy {key}: its JSON cannot be read: {error}") from None
        if not equals or not isinstance(found[key], dict | None):
            raise click.UsageError(f"--policy {each}: write KIND/NAME={{…}}, or KIND/NAME=null")
    return found
