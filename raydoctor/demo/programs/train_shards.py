"""Train on three shards at once, each task with its shard in memory."""

import time

import ray

SHARD_BYTES = 500 * 1024**2
PART_BYTES = 25 * 1024**2


def load_shard(shard: int) -> list[bytearray]:
    """Read a shard, part by part."""
    parts = []
    for _ in range(SHARD_BYTES // PART_BYTES):
        parts.append(bytearray(b"x") * PART_BYTES)
        time.sleep(0.2)
    return parts


@ray.remote(max_retries=0)
def train(shard: int) -> float:
    """Train on one shard."""
    parts = load_shard(shard)
    time.sleep(10)
    return len(parts) / 100


def main() -> None:
    """Train on every shard and report the losses."""
    ray.init(
        num_cpus=3, object_store_memory=100 * 1024**2, include_dashboard=False, dashboard_port=0
    )
    print("training on 3 shards")
    losses = ray.get([train.remote(shard) for shard in range(3)])
    print("losses", losses)


if __name__ == "__main__":
    main()
