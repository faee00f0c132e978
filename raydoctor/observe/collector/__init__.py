"""The basis of all collectors: tables, deadlines, child processes, the cluster and its listeners."""
