"""Used by all packages: the values that cross layers, ids, texts, errors, lines to paste."""
