"""How the queues of topics are divided among the consumers of a group: strategies, pure and one a file.

Strategies without memory (`strategy.Strategy`) are those of RocketMQ, with its names, results and errors. `sticky` and
`weighted` continue from the allocation before, and move as little as balance allows.
"""
