"""`loadmanager demo`: a cluster of real processes under real load that loses brokers, but no request.

`engine.py` plays the script on `stage.py`, with each broker a process (`member.py`). `observer.py` follows the cluster
by reading its log, `screen.py` shows it, `report.py` measures. The service is `loadmanager/demo/counter`.
"""
