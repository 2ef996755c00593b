"""The endpoints of a sidecar, for the service beside it: see `loadmanager.sidecar` and `docs/sidecar.md`."""
