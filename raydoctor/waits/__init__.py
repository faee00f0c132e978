"""Hangs and deadlocks: pure functions of the tables and process samples of a cluster.

`cluster/samples.py` holds the samples. `kinds/kind.py` classifies what a process waits in, `candidates.py`
lists the unfinished work, `edges.py` finds what each waits for, `graph.py` the cycles, and `hung.py`
combines them for `raydoctor hung` and for rules. A new kind of wait is an entry in `kinds/catalog.py` and a
fix in `remedies.py`.
"""
