"""Environments and worker start-up: their errors and remedies."""
