"""What the GCS, the workers and the dashboard report."""
