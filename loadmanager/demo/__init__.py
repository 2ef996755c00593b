"""`loadmanager demo`: a cluster of real processes under real load that loses brokers, but no request.

`engine.py` plays the script, `script.py` says what happens when, `watch.py` follows the cluster by reading its log,
`picture.py` and `plain.py` show it, `figures.py` measures. The service is `loadmanager/demo/counter`.
"""
