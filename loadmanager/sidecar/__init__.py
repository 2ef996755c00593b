"""A broker beside a service in another language: the service gets the hooks as HTTP calls, and leases to serve by.

`wire.py` has the messages and the signature. `leases.py` decides what the service may still be serving.
`remote_host.py` calls the hooks. `sidecar.py` runs a broker for as long as a service's session lasts. The endpoints are
in `loadmanager_api.sidecar`; `docs/sidecar.md` is the contract, `conformance/` tests a service against it.
"""
