"""The processes of this machine: Ray's own, workers, drivers, and processes that they started."""
