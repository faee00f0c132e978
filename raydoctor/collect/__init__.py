"""The only code that touches a live system; what it writes, it redacts, here and once.

Everything above reads a capture, so what a collector lets through is in the capture, in the report made of
it, and in the bug report that somebody pastes: nothing leaves this layer that `redact` has not seen.
"""
