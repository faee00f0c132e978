"""Amounts of resources as Ray's components write them, and whether a request fits.

Up to Ray 2.40 the raylet writes amounts in ten-thousandths (`{CPU: 10000}` is one CPU), since 2.50 as plain
numbers (`{CPU: 1}`). `total` in its dumps is always in ten-thousandths. The autoscaler writes Python
dictionaries. Read in the logs of Ray 2.9.3, 2.20, 2.40, 2.50 and 2.60.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raydoctor.model.patterns import pattern
from raydoctor.model.text import joined, size

Needs = Mapping[str, float]
"""Resource name -> amount; `memory` in bytes."""

OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resource -> the option of a task, actor or deployment that requests it; any other is in `resources=`."""
_FIXED_POINT = 10_000
_BYTES = ("memory", "object_store_memory")
_NUMBER = r"\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?"
"""Never more than a float holds; other text is damaged, or no amount."""
_IS_NUMBER = pattern(_NUMBER)
_PYTHON_ITEM = pattern(rf"'([^']+)': ({_NUMBER})(?=[,}}\s])")
_PYTHON_DICT = pattern(r"\{[^{}]*\}")


def amounts(text: str) -> Needs:
    """`CPU: 10000, GPU: 5000` (up to 2.40) or `CPU: 1, GPU: 0.5`."""
    values = _values(text)
    return {name: v / _FIXED_POINT for name, v in values.items()} if is_fixed(text) else values


def is_fixed(text: str) -> bool:
    """Whether these amounts are in ten-thousandths.

    The form is recognized by size: no request is for ten thousand CPUs, and fractions are multiples of 0.01.
    """
    values = _values(text)
    counts = [v for name, v in values.items() if name not in _BYTES]
    if not counts:
        numbers = (value for _, _, value in _items(text))
        return bool(values) and all(map(str.isdigit, numbers))  # plain bytes: `1.07374e+11`
    most = max(counts)
    whole = all(v == int(v) for v in counts)
    return whole and (most >= _FIXED_POINT or (most >= 1000 and most % 100 == 0))


def _items(text: str) -> list[tuple[str, str, str]]:
    return [item.strip("{}").rpartition(": ") for item in text.split(", ") if ": " in item]


def _values(text: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in _items(text) if _is_number(value)}


def _is_number(text: str) -> bool:
    return _IS_NUMBER.fullmatch(text) is not None


def numbers(text: str) -> list[float]:
    """`[10000, 20000]`, or a single amount."""
    return [float(number) for number in _IS_NUMBER.findall(text)]


def amounts_of_spec(text: str) -> Needs:
    """`accelerator: 1, CPU: 1, ` of a task's specification: plain amounts in every Ray version."""
    items = [item.rpartition(": ") for item in text.split(", ")]
    return {name: float(value) for name, _, value in items if name and _is_number(value)}


def python_amounts(text: str) -> list[Needs]:
    """The dictionaries in the autoscaler's records."""
    return [
        {name: float(value) for name, value in _PYTHON_ITEM.findall(found)}
        for found in _PYTHON_DICT.findall(text)
    ]


def key(needs: Needs) -> frozenset[tuple[str, float]]:
    """A key that is equal for equal requests; C++ prints six digits of a memory size, Python all of them."""
    return frozenset((name, float(f"{v:.4g}")) for name, v in needs.items() if v)


def describe(needs: Needs) -> str:
    """`1 GPU and 4 CPUs`: rare resources first."""
    order = sorted(needs, key=lambda n: (n in _BYTES, n == "CPU", n != "GPU", n))
    return joined([_amount(n, needs[n]) for n in order]) or "nothing"


NODES_OWN = "node:"
"""The beginning of the name of a resource that only one node has, with its IP address."""


def _amount(name: str, amount: float) -> str:
    if name.startswith(NODES_OWN):
        return f"the node {name.removeprefix(NODES_OWN)}"
    return f"{size(amount)} {name}" if name in _BYTES else f"{amount:g} {unit(name, amount)}"


def unit(name: str, amount: float) -> str:
    """`CPUs` of several; the names of custom resources are not words, and stay as they are."""
    return f"{name}s" if name in ("CPU", "GPU", "TPU") and (amount > 1 or not amount) else name


def share(name: str, part: float, whole: float) -> str:
    """`2 of 4 CPUs`, `1.5 GiB of 2.0 GiB memory`."""
    if name in _BYTES:
        return f"{size(part)} of {size(whole)} {name}"
    return f"{part:g} of {whole:g} {unit(name, whole)}"


def all_of(name: str, total: float) -> str:
    """`all 4 CPUs`, `the only GPU`, `all 2 units of the resource licence`, `all 2.0 GiB of memory`."""
    if name in _BYTES:
        return f"all {size(total)} of {name}"
    if unit(name, 2) == name:
        return f"{'the only unit' if total == 1 else f'all {total:g} units'} of the resource {name}"
    return f"the only {name}" if total == 1 else f"all {total:g} {unit(name, total)}"


def ten_thousandths(text: str) -> Needs:
    """Amounts in the units of the raylets' dumps."""
    items = [item.rpartition(": ") for item in text.split(", ") if ": " in item]
    return {n: float(v) / _FIXED_POINT for n, _, v in items if _is_number(v)}


def fits(total: Needs, needs: Needs) -> bool:
    """Whether a node's total is enough for this request."""
    return all(total.get(name, 0.0) >= amount for name, amount in needs.items())


def short_of(nodes: Iterable[Needs], needs: Needs) -> list[str]:
    """Resources of which no single node has enough."""
    listed = list(nodes)
    return [
        n
        for n, amount in needs.items()
        if max((t.get(n, 0.0) for t in listed), default=0.0) < amount
    ]


def visible(total: Needs) -> Needs:
    """A node's resources without those that are never requested by name."""
    return {
        n: v
        for n, v in total.items()
        if not n.startswith("node:") and n != "object_store_memory" and "_group_" not in n
    }
