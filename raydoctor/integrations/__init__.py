"""Where people work besides the shell: pytest and notebooks."""
