"""Tables of a live cluster as typed rows, for rules and waits alike."""
