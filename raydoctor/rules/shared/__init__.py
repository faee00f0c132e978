"""What several rules need: lines, remedies and examples of one kind of failure."""
