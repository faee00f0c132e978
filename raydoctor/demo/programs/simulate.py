# mypy: ignore-errors
"""Simulate in actors that stay, then evaluate in tasks."""

import ray


@ray.remote(num_cpus=1)
class Simulator:
    """Holds a CPU for as long as it lives."""

    def run(self, step: int) -> int:
        """Simulate one step."""
        return step * step


@ray.remote(num_cpus=1)
def evaluate(result: int) -> float:
    """Judge a result; needs a CPU that the simulators hold."""
    return result / 2


def main() -> None:
    """Simulate on every CPU, then evaluate."""
    ray.init(
        num_cpus=2, object_store_memory=100 * 1024**2, include_dashboard=False, dashboard_port=0
    )
    simulators = [Simulator.remote() for _ in range(2)]
    results = ray.get([simulator.run.remote(3) for simulator in simulators])
    print("simulated", results)
    print("scores", ray.get([evaluate.remote(result) for result in results], timeout=15))


if __name__ == "__main__":
    main()
