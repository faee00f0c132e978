"""Call stacks of processes, and what their threads wait for."""
