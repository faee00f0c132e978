"""What the search for signals leaves out: memory over time, the lines around a record, silence in a log."""
