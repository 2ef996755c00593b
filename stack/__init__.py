"""Real Kafka and ZooKeeper servers for development and tests, from Maven jars, on free loopback ports.

`python -m stack up | status | down`, or the classes of `stack.servers`. Standard library only. Not for production:
one node each, no replication, no authentication.
"""
