"""The kinds of wait, from a thread's frames and the kernel's state."""
