"""Validates a policy document before it is written. Pure.

What can never be right raises Invalid; a reference to something that does not exist raises NotFound. A rule that
nothing satisfies at present becomes a Conflict that names it and can be forced (brokers may be about to come).
Everything else the author should know is a note, e.g. unknown brokers, which may come later.
"""

from __future__ import annotations

from loadmanager.errors import NotFound
from loadmanager.model.policies.fields import check_fields, check_name
from loadmanager.model.policies.findings import Findings, Known
from loadmanager.model.policies.model import (
    BrokerPolicy,
    BundlePolicy,
    FailureDomain,
    IsolationPolicy,
    Kind,
    Policies,
    Policy,
)
from loadmanager.model.policies.satisfying import (
    SHOWN,
    of_broker,
    of_bundle,
    of_failure_domain,
    of_isolation,
    of_isolation_gone,
)
from statechannel.law.bundle import Bundle


def check(kind: Kind, name: str, policy: Policy, others: Policies, known: Known) -> Findings:
    """Check a document; `others` are the present policies. Raises Invalid, NotFound."""
    check_name(kind, name)
    check_fields(policy, known.settings)
    match policy:
        case IsolationPolicy():
            return of_isolation(name, policy, others, known)
        case FailureDomain():
            return of_failure_domain(name, policy, others, known)
        case BrokerPolicy():
            return of_broker(name, policy, others, known)
        case BundlePolicy():
            bundle = Bundle.parse(name)
            if bundle not in others.bundles:  # a bundle that was split or merged since keeps its policy
                _exists(bundle, known)
            return of_bundle(bundle, policy, others, known)
        case _:
            if kind is Kind.NAMESPACE and name not in known.namespaces:
                raise NotFound(f"there is no namespace {name}; create it first")
            return Findings()


def check_deletion(kind: Kind, name: str, others: Policies, known: Known) -> Findings:
    """Check the deletion of a present document."""
    return of_isolation_gone(name, others, known) if kind is Kind.ISOLATION else Findings()


def _exists(bundle: Bundle, known: Known) -> None:
    bundles = known.bundles_of(bundle.namespace)
    if not bundles:
        raise NotFound(f"there is no namespace {bundle.namespace}; create it first")
    if bundle not in bundles:
        shown = ", ".join(each.range for each in bundles[:SHOWN]) + (" …" if len(bundles) > SHOWN else "")
        raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
