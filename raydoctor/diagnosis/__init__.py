"""Runs the rules, links causes, lists what stays unexplained; differences; rules of other packages."""
