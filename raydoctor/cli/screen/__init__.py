"""The terminal of `raydoctor watch`, and lines that are written without waiting for their reader."""
