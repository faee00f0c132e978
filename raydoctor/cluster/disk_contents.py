"""What a cluster keeps on its disks: the kinds of content in the table `disk-usage`."""

from __future__ import annotations

SPILLED = "spilled objects"
LOGS = "logs"
ENVIRONMENTS = "runtime environments"
OTHER = "other files of the session"
"""Files in the folder of a session that are none of the above."""
FORMER_OTHER = "the rest of the session"
"""Its name in captures of earlier versions."""
OLD_SESSIONS = "old sessions"
SHARED_MEMORY = "shared memory"
