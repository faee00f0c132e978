"""Other nodes: functions that run there, and their logs."""
