"""Ray on Kubernetes, through the user's own `kubectl` and rights: objects, logs of containers, logs of Ray.

Nothing is changed: the commands are `get`, `logs`, and `exec` of `raydoctor collect`, `raydoctor zombies` or
`tar`. What the API server returns is untrusted: names are checked before they become arguments or paths.
"""
