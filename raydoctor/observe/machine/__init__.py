"""This machine: memory, cgroups, disks, GPUs, kernel log, sessions, clocks, settings."""
