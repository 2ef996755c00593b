"""A broker inside a service: the facades, the control thread, the gate of the data path, the endpoints."""
