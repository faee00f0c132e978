"""Runtime environments and worker start-up: errors and remedies."""
