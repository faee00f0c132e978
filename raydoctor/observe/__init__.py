"""The only code that looks at a live system; what it writes, it redacts here and once."""
