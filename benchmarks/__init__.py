"""Measurements and sweeps that are too long for the test suite: `python -m benchmarks.NAME`."""
