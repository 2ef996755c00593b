"""How the queues of topics are divided among the consumers of a group: strategies, all of them pure.

Those without memory (`rocketmq.py`) are RocketMQ's, with its names, results and errors. `sticky` and `weighted`
continue from the allocation before, and move as little as balance allows.
"""
