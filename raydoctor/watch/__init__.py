"""Watching a cluster: the loop, its budget, its changes, and the data of its screen."""
