"""Other nodes: functions that are run there, and their logs."""
