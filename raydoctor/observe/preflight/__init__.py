"""The checks of `raydoctor check`: probes and pure verdicts."""
