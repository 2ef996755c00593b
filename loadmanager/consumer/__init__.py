"""A consumer of Kafka topics in a group that a broker of the load manager coordinates."""
