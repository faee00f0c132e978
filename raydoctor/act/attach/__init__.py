"""A debugger in a process that runs."""
