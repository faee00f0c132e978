"""What only a page for a browser shows: memory over time, and the lines around a record."""
