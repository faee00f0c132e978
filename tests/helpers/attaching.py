"""Attaches that are to fail, on machines that may be busy."""

from __future__ import annotations

import pytest

from raydoctor.act.attach.attach import AttachTarget, NotAttachedError, attach
from raydoctor.act.audit import Audit
from tests.helpers.waiting import PATIENCE


def refused_as_late(pid: int) -> NotAttachedError:
    """The refusal by a process in which the import of debugpy has begun; a busy machine begins it later."""
    for grace in (0.5, 5.0, PATIENCE):
        with pytest.raises(NotAttachedError) as caught:
            attach(AttachTarget(pid), grace=grace, audit=Audit("test", path="/dev/null"))
        if caught.value.why == "late":
            assert f"within {grace:g} s" in caught.value.message
            break
    assert caught.value.why == "late"
    return caught.value
