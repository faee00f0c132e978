"""Waiting for many tasks, each with a time limit."""
