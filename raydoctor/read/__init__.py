"""Bytes -> events: the ripgrep pass, record assembly, clocks, ids, structured files."""
