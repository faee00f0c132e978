"""Signals to processes whose identity was checked, and to cgroups."""
