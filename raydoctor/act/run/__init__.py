"""Running a driver, with its output kept and nothing of it left behind."""
