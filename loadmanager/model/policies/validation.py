"""What a policy document must be before it is written. Pure.

Three kinds of findings: what can never be right is Invalid; what is about something that is not there, NotFound; a
rule that nothing satisfies at present is a Conflict that names it, and may be forced (brokers may be about to come).
Whatever else its author should know is a note: unknown brokers are, they may come later.
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
    """What is to be said of a document; `others` are the policies that hold now. Raises Invalid, NotFound."""
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
            if bundle not in others.bundles:  # one that was split or merged since keeps what it has
                _exists(bundle, known)
            return of_bundle(bundle, policy, others, known)
        case _:
            if kind is Kind.NAMESPACE and name not in known.namespaces:
                raise NotFound(f"there is no namespace {name}; create it first")
            return Findings()


def check_deletion(kind: Kind, name: str, others: Policies, known: Known) -> Findings:
    """What is to be said of the deletion of a document that holds now."""
    return of_isolation_gone(name, others, known) if kind is Kind.ISOLATION else Findings()


def _exists(bundle: Bundle, known: Known) -> None:
    bundles = known.bundles_of(bundle.namespace)
    if not bundles:
        raise NotFound(f"there is no namespace {bundle.namespace}; create it first")
    if bundle not in bundles:
        shown = ", ".join(each.range for each in bundles[:SHOWN]) + (" …" if len(bundles) > SHOWN else "")
        raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
