"""Leftovers of Ray: processes and files, their judgement and their end."""
