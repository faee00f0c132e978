"""What every room uses: the values that cross layers, ids, texts, errors, lines to paste."""
