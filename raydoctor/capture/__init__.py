"""The files that a diagnosis reads, and the role of each."""
