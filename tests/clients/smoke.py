"""Uses the generated Python client as its author would, and prints what it saw as JSON: smoke.py URL TOKEN."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
import time

from loadmanager_client import AuthenticatedClient
from loadmanager_client.api.bundles import list_bundles, show_bundle, split_bundle
from loadmanager_client.api.lookup import look_up_many
from loadmanager_client.api.namespaces import create_namespace, unload_namespace
from loadmanager_client.api.operations import show_operation
from loadmanager_client.api.policies import put_policy
from loadmanager_client.api.this_broker import show_me
from loadmanager_client.models import (
    BundlePage,
    Children,
    Kind,
    LookupRequest,
    NamespacePolicy,
    NewNamespace,
    Problem,
    SplitRequest,
)
from loadmanager_client.models import OperationResponse as Operation

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
seen: dict[str, object] = {}

me = show_me.sync(client=client)
seen["me"] = getattr(me, "principal", None)
seen["created"] = int(
    create_namespace.sync_detailed("t", "py", client=client, body=NewNamespace(num_bundles=4)).status_code
)
found = look_up_many.sync(client=client, body=LookupRequest(topics=["t/py/a", "no/such/topic"]))
seen["looked up"] = [not each.error for each in found.answers]

names: list[str] = []
cursor = None
while True:
    page = list_bundles.sync(client=client, namespace="t/py", limit=3, cursor=cursor)
    assert isinstance(page, BundlePage)
    names += [each.bundle for each in page.bundles]
    cursor = page.next_
    if cursor is None:
        break
seen["bundles"] = names

owned = next(each.bundle for each in list_bundles.sync(client=client, namespace="t/py", state="assigned").bundles)
_, _, hash_range = owned.split("/")
half = SplitRequest(parts=2)
answers = [split_bundle.sync("t", "py", hash_range, client=client, body=half, idempotency_key="k-py") for _ in range(2)]
assert all(isinstance(each, Children) for each in answers), answers
seen["split"] = [len(each.children) for each in answers]

begun = unload_namespace.sync("t", "py", client=client, prefer="respond-async")
while isinstance(begun, Operation) and begun.state == "running":
    time.sleep(0.05)
    begun = show_operation.sync(begun.id, client=client)
seen["unloaded"] = [begun.state, begun.status]

document = NamespacePolicy(anti_affinity_group="g")
seen["policy"] = [
    int(put_policy.sync_detailed(Kind.NAMESPACE, "t/py", client=client, body=document, if_none_match="*").status_code)
    for _ in range(2)
]
problem = show_bundle.sync("t", "py", "0x00000000_0x00000001", client=client)
assert isinstance(problem, Problem)
seen["problem"] = [problem.status, problem.type_]
print(json.dumps(seen))
