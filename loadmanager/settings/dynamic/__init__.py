"""Settings of the whole cluster, changed while its brokers run: names, values, the topic, and what they act on."""
