"""The processes of this machine: Ray's own, workers, drivers, and what they started."""
