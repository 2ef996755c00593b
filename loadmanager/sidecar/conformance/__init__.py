"""Tests a service in any language against the contract `docs/sidecar.md`, in the roles of sidecar and cluster.

`checks.py` is the contract, promise by promise. `stage.py` is what the checks use: the process of the service,
hooks sent to it (forged ones too), requests. `played_sidecar.py` answers what the service asks, at a port that can
break off. `runner.py` runs the checks.

A correct service passes on a busy machine, too. What must be served is asked for again, for many seconds. What must not
be served is asked for only after the deadline has surely passed, by readings of one clock on this side. Each check has
bundles of its own, anywhere in the hash space, so what it leaves behind does not affect others.
"""
