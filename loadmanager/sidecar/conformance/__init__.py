"""Tries a service in any language against the contract `docs/sidecar.md`: plays sidecar and cluster to it.

`catalogue.py` lists the checks, `checks/` has them by theme: each is a function whose docstring is what a service
promises. `stage.py` is what they act with: `script.py` answers the service's requests as a check wants it, `gate.py`
is the port where the service finds them and can break off, `service.py` is the process, `hook.py` sends hooks, also
forged ones. `runner.py` runs the checks.

A correct service passes on a busy machine, too: what must be served is asked again until a time-out of many seconds;
what must not be served is asked only after the deadline has surely passed, by readings of one clock on this side.
Each check has bundles of its own, somewhere in the hash space: what a check leaves behind does not touch others.
"""
