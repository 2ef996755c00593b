"""A broker inside a service: the facades, the control thread, the gate for requests, the endpoints."""
