"""The cluster address that drivers and `ray` commands of the collecting shell would use: table `addresses`.

There is a finding only if the diagnosed cluster answers at its own address: another address is then a mistake, or means
another cluster on purpose. Ray 2.60 waits 40 s for an address where no GCS answers, then fails with `Timed out while
waiting for GCS to become available` (measured).
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
    """A finding if this shell's drivers would use an address where no GCS answers, or another live cluster."""
    rows = live.rows(case, "addresses")
    used = next((e for e in rows if live.truth(e, "used")), None)
    homes = [e for e in rows if live.truth(e, "is_this") and live.truth(e, "answers")]
    if used is None or not homes or live.truth(used, "is_this") or not used["answers"]:
        return None
    home = min(homes, key=lambda e: e["origin"] != _RAYLET)
    return _other(used, home) if live.truth(used, "answers") else _unanswered(used, home)


def _unanswered(used: Event, home: Event) -> Finding:
    origin, address = used["origin"], used["address"]
    return Finding(
        f"{_setting(used)} points to {address}, where no cluster answers: ray commands and ray.init() in this shell fail "
        f"after {_WAIT} s, although a cluster runs at {home['address']}",
        (
            Link(used, "Ray tries this address first, and no process listens there"),
            Link(home, "the running cluster has this address"),
        ),
        explains=(Entity("choice-of-cluster", f"{origin} {address}"),),
        remedies=(_fix(used, home, "points to no cluster"),),
    )  # fmt: skip


def _other(used: Event, home: Event) -> Finding:
    origin, address = used["origin"], used["address"]
    return Finding(
        f"{_setting(used)} points to another live cluster, {address}: drivers and ray commands in this shell connect there and not to "
        f"the diagnosed cluster ({home['address']})",
        (
            Link(used, "Ray tries this address first, and a GCS answers there"),
            Link(home, "the diagnosed cluster has this address"),
        ),
        explains=(Entity("choice-of-cluster", f"{origin} {address}"),),
        severity="warning",
        remedies=(
            _fix(used, home, "points to the other cluster"),
            Remedy(
                "Diagnose the other cluster, if you meant that one",
                (paste.shell("RAY_ADDRESS={address} raydoctor diagnose", address=address),),
            ),
        ),
    )  # fmt: skip


def _setting(used: Event) -> str:
    return "RAY_ADDRESS" if used["origin"] == _VARIABLE else f"The file {used['origin']}"


def _fix(used: Event, home: Event, why: str) -> Remedy:
    """The lines that make Ray use the running cluster."""
    here = paste.shell("export RAY_ADDRESS={address}", address=home["address"])
    if used["origin"] == _VARIABLE:
        steps: tuple[str, ...] = (
            here,
            "unset RAY_ADDRESS   # or let Ray find the cluster of this machine",
        )
        return Remedy(f"Change RAY_ADDRESS, which {why}", steps, doc=INIT_DOC)
    if not live.truth(used, "answers"):
        remove = paste.shell("rm {file:path}", file=used["origin"])
        steps = ("# the next ray start writes it again:", remove, here)
        return Remedy(
            f"Remove the file: it {why}, and no live cluster uses it", steps, doc=INIT_DOC
        )
    return Remedy(
        f"Set RAY_ADDRESS to the cluster that you mean: the file {why}", (here,), doc=INIT_DOC
    )
