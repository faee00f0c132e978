"""`kubectl raydoctor`: a plugin of kubectl, which runs the program `kubectl-raydoctor` on PATH."""
