"""Cancelling a task, from the gentlest step to the hardest."""
