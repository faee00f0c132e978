"""Ray's memory monitor: its reports and their remedies."""
