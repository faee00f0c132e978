"""What rules about live tables need: lines, examples, what hangs."""
