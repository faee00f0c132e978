"""Collect more blocks than the object store holds."""

import ray

BLOCK_BYTES = 24 * 1024**2


def main() -> None:
    """Keep every block, then count them."""
    ray.init(
        num_cpus=1, object_store_memory=100 * 1024**2, include_dashboard=False, dashboard_port=0
    )
    blocks = []
    for number in range(12):
        blocks.append(ray.put(bytes([number]) * BLOCK_BYTES))
        print(f"block {number} stored")
    print("bytes", sum(len(ray.get(block)) for block in blocks))


if __name__ == "__main__":
    main()
