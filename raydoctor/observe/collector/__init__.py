"""What every collector uses: tables, deadlines, child processes, the cluster and its listeners."""
