"""Where the drivers and `ray` commands of the shell that collected would go: table `addresses`.

A finding is made only where the cluster that is diagnosed answers at its own address: whoever goes elsewhere then goes
wrong, or goes to another one on purpose. What Ray 2.60 does with an address where nobody answers was measured: 40 s of
waiting, then `Timed out while waiting for GCS to become available`.
"""

from __future__ import annotations

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import INIT_DOC

_VARIABLE = "RAY_ADDRESS"
_RAYLET = "raylet"
_WAIT = 40
"""Seconds that Ray waits for a GCS."""


def astray(case: Case) -> Finding | None:
    """This shell's drivers would go to an address where nobody answers, or to another cluster that does."""
    rows = live.rows(case, "addresses")
    used = next((e for e in rows if live.truth(e, "used")), None)
    homes = [e for e in rows if live.truth(e, "is_this") and live.truth(e, "answers")]
    if used is None or not homes or live.truth(used, "is_this") or not used["answers"]:
        return None
    home = min(homes, key=lambda e: e["origin"] != _RAYLET)
    return _other(used, home) if live.truth(used, "answers") else _nobody(used, home)


def _nobody(used: Event, home: Event) -> Finding:
    origin, address = used["origin"], used["address"]
    return Finding(
        f"{_told(used)} names {address}, where nobody answers: every `ray` command and every `ray.init()` of this shell waits "
        f"{_WAIT} s for it and fails, though a cluster runs at {home['address']}",
        (
            Link(used, "this is the address that Ray takes first, and nobody listens there"),
            Link(home, "the cluster that runs is here"),
        ),
        explains=(Entity("choice-of-cluster", f"{origin} {address}"),),
        remedies=(_mend(used, home, "leads nowhere"),),
    )  # fmt: skip


def _other(used: Event, home: Event) -> Finding:
    origin, address = used["origin"], used["address"]
    return Finding(
        f"{_told(used)} names another live cluster, {address}: drivers and `ray` commands of this shell go there, not to the one that "
        f"is diagnosed here ({home['address']})",
        (
            Link(used, "this is the address that Ray takes first, and somebody answers there"),
            Link(home, "the cluster that is diagnosed is here"),
        ),
        explains=(Entity("choice-of-cluster", f"{origin} {address}"),),
        severity="warning",
        remedies=(
            _mend(used, home, "names the other cluster"),
            Remedy(
                "If the other cluster is meant, diagnose that one",
                (paste.shell("RAY_ADDRESS={address} raydoctor diagnose", address=address),),
            ),
        ),
    )  # fmt: skip


def _told(used: Event) -> str:
    return "RAY_ADDRESS" if used["origin"] == _VARIABLE else f"The file {used['origin']}"


def _mend(used: Event, home: Event, why: str) -> Remedy:
    """The line that makes Ray go to the cluster that runs."""
    here = paste.shell("export RAY_ADDRESS={address}", address=home["address"])
    if used["origin"] == _VARIABLE:
        steps: tuple[str, ...] = (
            here,
            "unset RAY_ADDRESS   # or: let Ray find the cluster of this machine",
        )
        return Remedy(f"Set RAY_ADDRESS anew: it {why}", steps, doc=INIT_DOC)
    if not live.truth(used, "answers"):
        remove = paste.shell("rm {file:path}", file=used["origin"])
        steps = ("# the next ray start writes it anew:", remove, here)
        return Remedy(
            f"Remove the file: it {why}, and no live cluster needs it", steps, doc=INIT_DOC
        )
    return Remedy(f"Say which cluster is meant: the file {why}", (here,), doc=INIT_DOC)
