"""Nodes whose pods are processes of this machine: what a kubelet and a kube-proxy do, without containers.

Real: the pod's environment, arguments, volumes, user, capabilities, read-only root, init containers and native
sidecars, restarts, probes, hooks, SIGTERM and its grace period, the status in the API server, `kubectl logs`. A pod
has a file system of its own (a mount namespace: `sandbox.py`), and an address of its own on loopback (127.x.y.z), new
with each pod. Needs Linux and root.

Emulated, and how it differs:
* An image is a program of this machine (`images.py`). Unknown images are not pulled: ErrImagePull.
* All pods share one network stack, of IPv4 alone, and nothing enforces a NetworkPolicy. Where a pod's arguments and
  variables say `0.0.0.0`, `127.0.0.1`, or `=:PORT` without a host, they get the pod's address; `localhost` is the
  machine, with the servers on it.
* Names are a hosts file that is kept current, Services are a proxy that opens each connection to some ready pod.
* Requests and limits count for the scheduler only.
* A pod whose object is deleted at once (`--force --grace-period=0`) gets SIGKILL, as when its machine dies. A real
  kubelet would give it two seconds.
* Containers are restarted after 1, 2, 4 … 30 s instead of 10, 20, 40 … 300 s.
"""
