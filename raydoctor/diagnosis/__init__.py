"""Runs the rules, links causes, lists unexplained symptoms; compares reports; loads others' rules."""
