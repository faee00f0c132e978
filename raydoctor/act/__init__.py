"""The only code that changes anything: it ends processes, removes files, cancels tasks."""
