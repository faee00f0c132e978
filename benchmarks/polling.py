"""`raydoctor.poll` against `ray.get` of as many tiny tasks, in turn, on a Ray of its own.

    python -m benchmarks.polling                      # 10,000 tasks, three rounds
    python -m benchmarks.polling --tasks 2000 --address 127.0.0.1:6379

Prints the seconds of each round, submitting included, and the ratio of the medians: at most 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ray

from raydoctor.act.poll.poll import poll

TARGET = 1.3


@ray.remote
def tiny(number: int) -> int:
    return number


def by_get(refs: list[Any]) -> int:
    return sum(ray.get(refs))


def by_poll(refs: list[Any]) -> int:
    return sum(result.get() for result in poll(refs, timeout=100))


def seconds(collect: Callable[[list[Any]], int], tasks: int) -> float:
    """How long it takes to submit that many and to have them all."""
    began = time.perf_counter()
    total = collect([tiny.remote(number) for number in range(tasks)])
    took = time.perf_counter() - began
    assert total == tasks * (tasks - 1) // 2
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--address", default="local")
    options = parser.parse_args()
    ray.init(address=options.address, log_to_driver=False, logging_level="error")
    seconds(by_get, 500)  # workers start
    took: dict[str, list[float]] = {"ray.get": [], "poll": []}
    for _ in range(options.rounds):
        took["ray.get"].append(seconds(by_get, options.tasks))
        took["poll"].append(seconds(by_poll, options.tasks))
    for name, times in took.items():
        print(f"{name:8} {' '.join(f'{each:7.2f}' for each in times)} s")
    ratio = statistics.median(took["poll"]) / statistics.median(took["ray.get"])
    print(f"x {ratio:.2f} of at most {TARGET}: {'met' if ratio <= TARGET else 'MISSED'}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
