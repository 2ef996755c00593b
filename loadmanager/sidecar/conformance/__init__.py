"""Tries a service in any language against the contract `docs/sidecar.md`: plays sidecar and cluster to it.

`checks.py` is the contract, promise by promise. `stage.py` is what the checks act with: the process of the service,
hooks sent to it (forged ones too), requests. `played_sidecar.py` answers what the service asks, at a port that can
break off. `runner.py` runs the checks.

A correct service passes on a busy machine, too: what must be served is asked again until a time-out of many seconds;
what must not be served is asked only after the deadline has surely passed, by readings of one clock on this side.
Each check has bundles of its own, somewhere in the hash space: what a check leaves behind does not touch others.
"""
