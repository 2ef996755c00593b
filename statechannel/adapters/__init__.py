"""The ports of `statechannel.ports` on SQLite, Kafka and ZooKeeper; one contract suite runs on all of them."""
