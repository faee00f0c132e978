"""Queries to the GCS, the workers and the dashboard."""
