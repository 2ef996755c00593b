"""Settings of the whole cluster, which change while its brokers run: names, values, the topic, the result."""
