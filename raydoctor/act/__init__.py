"""The only code that changes anything: what ends processes, removes files, cancels tasks."""
