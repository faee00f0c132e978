"""The call stacks of processes and what their threads wait for."""
