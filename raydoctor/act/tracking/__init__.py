"""What a tracked task starts, and its end with the task."""
