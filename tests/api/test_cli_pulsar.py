"""pulsar-admin's commands, typed as `loadmanager …`: those recorded of the real tool, and the names of all others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import click
import pytest
from click.testing import CliRunner

from loadmanager_api.cli.main import main
from tests.api.conftest import Cluster
from tests.api.test_cli import as_json, loadmanager
from tests.pulsar.test_pulsar_admin import DIFFERENT, RECORDED, SAME_OWNER, THEIRS

TAKEN: Mapping[str, int] = {
    "brokers list": 0,  # CLUSTER may be left out
    "topics unload persistent://rec/ns1/t0 -d 127.0.0.1:28081": 0,  # PIP-192's option
    "topics unload persistent://rec/ns1/t0": 0,
}
"""Exit codes that differ from those of the tool with our brokers."""

NAMES = {
    "brokers": """
        list leader-broker namespaces update-dynamic-config delete-dynamic-config list-dynamic-config
        get-all-dynamic-config get-internal-config get-runtime-config healthcheck backlog-quota-check version
        shutdown
    """,
    "broker-stats": """
        monitoring-metrics mbeans topics allocator-stats load-report
    """,
    "clusters": """
        get create update delete list update-peer-clusters get-cluster-migration update-cluster-migration
        get-peer-clusters get-failure-domain create-failure-domain update-failure-domain delete-failure-domain
        list-failure-domains
    """,
    "tenants": """
        list get create update delete
    """,
    "topics": """
        list list-partitioned-topics permissions grant-permission revoke-permission lookup partitioned-lookup
        bundle-range delete truncate unload subscriptions unsubscribe create-subscription
        update-subscription-properties get-subscription-properties stats stats-internal info-internal
        partitioned-stats partitioned-stats-internal skip clear-backlog expire-messages
        expire-messages-all-subscriptions create-partitioned-topic create-missed-partitions create
        update-partitioned-topic get-partitioned-topic-metadata get-properties update-properties
        remove-properties delete-partitioned-topic peek-messages examine-messages get-message-by-id
        get-message-id reset-cursor terminate partitioned-terminate compact compaction-status offload
        offload-status last-message-id get-retention set-replicated-subscription-status
        get-replicated-subscription-status get-backlog-size analyze-backlog get-replication-clusters
        set-replication-clusters remove-replication-clusters get-shadow-topics set-shadow-topics
        remove-shadow-topics create-shadow-topic get-shadow-source get-schema-validation-enforce
        set-schema-validation-enforce trim-topic
    """,
    "namespaces": """
        list topics bundles policies create delete permissions grant-permission revoke-permission
        subscription-permission grant-subscription-permission revoke-subscription-permission set-clusters
        get-clusters set-subscription-types-enabled get-subscription-types-enabled
        remove-subscription-types-enabled set-allowed-clusters get-allowed-clusters get-backlog-quotas
        set-backlog-quota remove-backlog-quota get-persistence set-persistence remove-persistence
        get-message-ttl set-message-ttl remove-message-ttl get-max-subscriptions-per-topic
        set-max-subscriptions-per-topic remove-max-subscriptions-per-topic get-subscription-expiration-time
        set-subscription-expiration-time remove-subscription-expiration-time get-anti-affinity-group
        set-anti-affinity-group get-anti-affinity-namespaces delete-anti-affinity-group set-deduplication
        get-deduplication remove-deduplication set-auto-topic-creation get-auto-topic-creation
        remove-auto-topic-creation set-auto-subscription-creation get-auto-subscription-creation
        remove-auto-subscription-creation get-retention set-retention remove-retention set-bookie-affinity-group
        get-bookie-affinity-group delete-bookie-affinity-group unload split-bundle get-topic-positions
        set-dispatch-rate remove-dispatch-rate get-dispatch-rate set-subscribe-rate get-subscribe-rate
        remove-subscribe-rate set-subscription-dispatch-rate get-subscription-dispatch-rate
        remove-subscription-dispatch-rate set-publish-rate get-publish-rate remove-publish-rate
        set-replicator-dispatch-rate get-replicator-dispatch-rate remove-replicator-dispatch-rate clear-backlog
        unsubscribe set-encryption-required get-encryption-required set-subscription-auth-mode
        get-subscription-auth-mode set-delayed-delivery get-delayed-delivery remove-delayed-delivery
        get-inactive-topic-policies set-inactive-topic-policies remove-inactive-topic-policies
        get-max-producers-per-topic set-max-producers-per-topic remove-max-producers-per-topic
        get-max-consumers-per-topic set-max-consumers-per-topic remove-max-consumers-per-topic
        get-max-consumers-per-subscription set-max-consumers-per-subscription
        remove-max-consumers-per-subscription get-max-unacked-messages-per-subscription
        set-max-unacked-messages-per-subscription remove-max-unacked-messages-per-subscription
        get-max-unacked-messages-per-consumer set-max-unacked-messages-per-consumer
        remove-max-unacked-messages-per-consumer get-compaction-threshold set-compaction-threshold
        remove-compaction-threshold get-offload-threshold set-offload-threshold get-offload-deletion-lag
        set-offload-deletion-lag clear-offload-deletion-lag get-schema-autoupdate-strategy
        set-schema-autoupdate-strategy get-schema-compatibility-strategy set-schema-compatibility-strategy
        get-is-allow-auto-update-schema set-is-allow-auto-update-schema get-schema-validation-enforce
        set-schema-validation-enforce set-offload-policies remove-offload-policies get-offload-policies
        set-deduplication-snapshot-interval get-deduplication-snapshot-interval
        remove-deduplication-snapshot-interval set-max-topics-per-namespace get-max-topics-per-namespace
        remove-max-topics-per-namespace set-property get-property remove-property set-properties get-properties
        clear-properties get-resource-group set-resource-group remove-resource-group get-entry-filters
        set-entry-filters remove-entry-filters update-migration-state
        set-dispatcher-pause-on-ack-state-persistent get-dispatcher-pause-on-ack-state-persistent
        remove-dispatcher-pause-on-ack-state-persistent
    """,
    "resource-quotas": """
        get set reset-namespace-bundle-quota
    """,
    "ns-isolation-policy": """
        set get list delete brokers broker
    """,
}
"""All commands of pulsar-admin 4.0.8, in the groups that `loadmanager` has too."""

GROUPS = (
    "bookies documents functions functions-worker packages proxy-stats resourcegroups schemas sink sinks source "
    "sources topicPolicies transactions"
)


@pytest.mark.slow
async def test_what_was_typed_for_pulsar_does_the_same_here(cluster: Cluster) -> None:
    await cluster.start(3, cluster="peer", split=False, merge=False)
    wrong: list[str] = []
    commands = [recorded["command"] for recorded in json.loads(RECORDED.read_text(encoding="utf-8"))["commands"]]
    exits = {each["command"]: each["exit"] for each in json.loads(RECORDED.read_text(encoding="utf-8"))["commands"]}
    for number, command in enumerate(commands):
        told = command
        for theirs, broker in zip(THEIRS, cluster.brokers, strict=True):
            told = told.replace(theirs, broker.name)
        result = await loadmanager(cluster, *shlex.split(told))
        wanted = DIFFERENT[command].exit if command in DIFFERENT else exits[command]
        if command == SAME_OWNER:
            wanted = int(SAME_OWNER in commands[:number])  # the second time it is there already
        if command.startswith("namespaces create"):
            wanted = int(command in commands[:number])
        wanted = TAKEN.get(command, wanted)
        if bool(result.exit_code) != bool(wanted):
            wrong.append(f"{told}: {result.exit_code}, not {wanted}: {result.output}")
    assert len(commands) > 70
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
async def test_topics_are_created_listed_and_looked_up_by_partition(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 8)
    made = await loadmanager(cluster, "topics", "create-partitioned-topic", "t/n/p", "-p", "3", "-m", "a=b")
    assert made.stdout == "created persistent://t/n/p with 3 partitions\n"
    assert (await as_json(cluster, "topics", "get-partitioned-topic-metadata", "t/n/p"))["partitions"] == 3
    names = [f"persistent://t/n/p-partition-{number}" for number in range(3)]
    places = await as_json(cluster, "topics", "partitioned-lookup", "t/n/p")
    assert [place["topic"] for place in places] == names
    for place in places:
        assert place["broker"] == cluster.owner(await cluster.assign(place["topic"]))
    sort = await as_json(cluster, "topics", "partitioned-lookup", "t/n/p", "--sort-by-broker")
    assert [place["broker"] for place in sort] == sorted(place["broker"] for place in places)
    for name in ("non-persistent://t/n/q", "t/n/x-partition-0"):
        assert (await loadmanager(cluster, "topics", "create", name)).exit_code == 0
    await cluster.agree()
    assert await as_json(cluster, "topics", "list", "t/n") == [
        *names,
        "persistent://t/n/x-partition-0",
        "non-persistent://t/n/q",
    ]
    assert await as_json(cluster, "namespaces", "topics", "t/n", "-m", "non_persistent") == ["non-persistent://t/n/q"]
    assert await as_json(cluster, "topics", "list-partitioned-topics", "t/n") == ["persistent://t/n/p"]
    its = (await loadmanager(cluster, "topics", "bundle-range", names[1])).stdout.strip()
    assert names[1] in await as_json(cluster, "topics", "list", "t/n", "-b", its)
    positions = await as_json(cluster, "namespaces", "get-topic-positions", "t/n", "-b", its, "-tl", names[1])
    assert list(positions["topicHashPositions"]) == [names[1]]
    low, _, high = its.partition("_")
    assert int(low, 16) <= positions["topicHashPositions"][names[1]] <= int(high, 16)
    alone = await loadmanager(cluster, "topics", "partitioned-lookup", "t/n/q")
    assert (alone.exit_code, "was not created with partitions" in alone.stderr) == (1, True)
    assert (await loadmanager(cluster, "topics", "delete-partitioned-topic", "t/n/p")).exit_code == 0
    await cluster.agree()
    assert await as_json(cluster, "topics", "list", "t/n", "-td", "persistent") == ["persistent://t/n/x-partition-0"]


async def test_lists_in_answers_are_readable(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 2)
    shown = await loadmanager(cluster, "tenants", "get", "t")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["allowedClusters", "standalone"],
        ["adminRoles", "-"],
    ]
    policies = json.loads((await loadmanager(cluster, "namespaces", "policies", "t/n")).stdout)
    assert policies["bundles"]["numBundles"] == 2
    owned = (await loadmanager(cluster, "brokers", "namespaces", "standalone", "-u", cluster.brokers[0].name)).stdout
    assert owned == "", "it owns nothing yet"
    bundle = await cluster.assign("t/n/a")
    owned = (await loadmanager(cluster, "brokers", "namespaces", "standalone", "-u", cluster.brokers[0].name)).stdout
    assert owned.splitlines()[2].split() == [str(bundle), "shared", "no", "yes"]


async def test_a_broker_is_shut_down_only_if_it_is_named_alone(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 2)
    bundle = await cluster.assign("t/n/a")
    owner = cluster.of(cluster.owner(bundle))
    at = cluster.brokers.index(owner)
    both = ",".join(broker.url for broker in cluster.brokers)
    refused = await loadmanager(cluster, "brokers", "shutdown", "--admin-url", both)
    assert (refused.exit_code, "say which broker" in refused.stderr) == (2, True)
    dry = await loadmanager(cluster, "brokers", "shutdown", "--dry-run", at=at)
    assert f"POST {owner.url}/admin/v2/brokers/shutdown" in dry.stdout
    assert not owner.node.registration.draining
    assert (await loadmanager(cluster, "brokers", "shutdown", "-m", "5", "-f", at=at)).exit_code == 0
    await cluster.until(lambda: cluster.owner(bundle) != owner.name)


async def test_a_split_takes_several_boundaries(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    bundle = await cluster.assign("t/n/a")
    split = ("namespaces", "split-bundle", "t/n", "-b", str(bundle), "-san", "specified_positions_divide")
    done = await loadmanager(cluster, *split, "-sb", "268435456", "-sb", "0x20000000,0x30000000")
    assert done.exit_code == 0, done.output
    assert (await as_json(cluster, "namespaces", "bundles", "t/n"))["boundaries"] == [
        *("0x00000000", "0x10000000", "0x20000000", "0x30000000"),
        "0xffffffff",
    ]


@pytest.mark.parametrize("group", NAMES)
def test_each_of_pulsars_commands_is_here_or_says_why_not(group: str) -> None:
    ours = main.get_command(click.Context(main), group)
    assert isinstance(ours, click.Group)
    known = ours.list_commands(click.Context(ours))
    absent = [name for name in NAMES[group].split() if name not in known]
    for name in absent:
        refused = CliRunner().invoke(main, [group, name, "--some-option", "x"])
        assert (refused.exit_code, f"`{group} {name}` is not here: " in refused.stderr) == (1, True), refused.output
    here = {"brokers", "tenants", "ns-isolation-policy"}
    assert (absent in ([], ["backlog-quota-check"])) == (group in here)


@pytest.mark.parametrize("group", GROUPS.split())
def test_groups_of_pulsar_alone_say_what_to_ask_instead(group: str) -> None:
    refused = CliRunner().invoke(main, [group, "list"])
    assert (refused.exit_code, "topics lookup TOPIC" in refused.stderr) == (1, True), refused.output


def test_a_mistyped_name_is_not_taken_for_one_of_pulsars() -> None:
    for name in ("set-anti-afinity-group", "get-topic-position", "delete-anti-affinity-groups"):
        mistyped = CliRunner().invoke(main, ["namespaces", name])
        assert (mistyped.exit_code, "id you mean" in mistyped.stderr) == (2, True), mistyped.output


def _groups(group: click.Group, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [
        path,
        *(each for name, sub in found if isinstance(sub, click.Group) for each in _groups(sub, (*path, name))),
    ]


def test_no_sentence_is_cut_in_the_list_of_commands() -> None:
    bad = list[str]()
    for path in _groups(main, ()):
        shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).stdout
        cut = [line for line in shown.splitlines()[1:] if line.endswith("...") or len(line) > 80]
        if "Commands:" not in shown or cut:
            bad.append(f"loadmanager {' '.join(path)} --help: {cut or 'no list of commands'}")
    assert not bad, "\n".join(bad)
