"""A broker beside a service in another language: the service gets the hooks as HTTP calls, and leases to serve by.

`wire.py` has the shapes and the signature, `leases.py` decides what the service may still be serving, `host.py` calls
the hooks, `sidecar.py` ties the life of a broker to that of a service's session. The endpoints are in
`loadmanager_api.sidecar`; `docs/sidecar.md` is the contract, `conformance/` tries it on a service.
"""
