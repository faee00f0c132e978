"""The test suite: `unit`, `fixtures` and `live`, and what they share in `helpers`."""
