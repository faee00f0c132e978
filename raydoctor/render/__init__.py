"""What was found -> text, JSON or Markdown."""
