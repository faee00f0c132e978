"""The readings of `raydoctor watch`: a running cluster again and again, at little cost."""
