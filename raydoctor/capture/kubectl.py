"""How each output of kubectl (1.20 to 1.34) begins. Pastes may squeeze or widen its blanks."""

from __future__ import annotations

DESCRIBED = r"Name:[^\S\n]{2,}\S"
"""`kubectl describe`."""
TABLE = (
    r"(?:NAMESPACE[^\S\n]+)?(?:NAME[^\S\n]+READY[^\S\n]+STATUS[^\S\n]+RESTARTS\b"
    r"|LAST SEEN[^\S\n]+TYPE[^\S\n]+REASON[^\S\n]+OBJECT\b)"
)
"""`kubectl get pods` and `kubectl get events`."""
ROW = (
    r"[a-z0-9][a-z0-9.-]{1,252}[^\S\n]+\d{1,3}/\d{1,3}[^\S\n]+(?:Init:)?"
    r"(?:\d{1,3}/\d{1,3}|[A-Z][A-Za-z]{4,40})[^\S\n]+\d{1,6}(?:[^\S\n]+\((?:\d{1,6}[smhdy]){1,3} ago\))?"
    r"[^\S\n]+(?:\d{1,6}[smhdy]){1,3}(?:[^\S\n]|$)"
)
"""A row of `kubectl get pods` without the head of its table."""
EVENTS = r"Type {2,}Reason {2,}Age {2,}From {2,}(?:SubObjectPath {2,})?Message[^\S\n]*$"
"""The events at the end of `kubectl describe`."""
EVENT = (
    r"Warning[^\S\n]{2,}[A-Z][A-Za-z]{2,60}[^\S\n]{2,}(?:\d{1,6}[smhdy]){1,3}"
    r"(?:[^\S\n]+\(x\d{1,9} over [^()\n]{1,20}\))?[^\S\n]{2,}[\w./-]{1,100}[^\S\n]{2,}\S"
)
"""One of them, without their head."""
STATE = r"(?:Last )?State: {2,}(?:Terminated|Waiting|Running)[^\S\n]*$"
"""The state of a container in `kubectl describe pod`: people paste it without the pod around it."""
