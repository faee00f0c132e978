"""Ray workers: which tasks they run, and their end."""
