"""Ray's memory monitor: its kills and what helps."""
