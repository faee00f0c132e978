"""Who hangs, in what, and who waits for whom: pure functions of what was seen of a cluster and its processes.

`cluster/samples.py` has what was seen, `kind.py` says in what a process hangs, `candidates.py` who hangs at
all, `graph.py` who waits for whom, `hung.py` puts these together. `raydoctor hung` prints it, rules use it
too.
"""
