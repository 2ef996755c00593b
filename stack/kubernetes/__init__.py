"""A Kubernetes cluster on this machine: the real control plane, and nodes whose pods are local processes.

`programs.py` builds the control plane from its Go modules; `control_plane.py` runs it; `kubelet/` plays the nodes.
"""
