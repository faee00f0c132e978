"""Output for other programs: code scanning, CI, monitoring, and the schemas of the JSON."""
