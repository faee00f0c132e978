"""Attaching a debugger to a running process."""
