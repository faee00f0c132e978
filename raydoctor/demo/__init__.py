"""Real failures of a real, throwaway Ray on this machine, for `raydoctor demo`.

The one part of raydoctor that starts Ray, in a child process; nothing here imports it.
"""
