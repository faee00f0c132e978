"""What Kubernetes records of a cluster's pods -> events, one per fact.

`kubectl get -o json|yaml`, its tables and `kubectl describe` are brought into the shape of the API's objects
(`documents.py`, `described.py`), and each object becomes events with a few fields (`objects.py`). Kinds:
`kube.pod`, `kube.container` (that waits, runs or has ended), `kube.event`, `kube.node`, `kube.cluster`
(RayCluster), `kube.job` (RayJob), `kube.service` (RayService), `kube.workload` (of Kueue). Their fields are
read by `cluster/pods.py` and `cluster/troubles.py`.
"""
