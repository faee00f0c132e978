# mypy: ignore-errors
"""An actor prepares tables and hands out references; the driver reads them later."""

import sys
import time

import ray

TABLE_BYTES = 4 * 1024**2


@ray.remote
class Preprocessor:
    """Prepares tables; owns the objects it puts."""

    def prepare(self, count: int) -> list[ray.ObjectRef]:
        """Put tables into the object store."""
        return [ray.put(bytes([table]) * TABLE_BYTES) for table in range(count)]

    def close(self) -> None:
        """Release the licence of the parser library, which ends the process."""
        sys.exit(3)


def main() -> None:
    """Prepare tables, close the preprocessor, then use the tables."""
    ray.init(
        num_cpus=2, object_store_memory=200 * 1024**2, include_dashboard=False, dashboard_port=0
    )
    preprocessor = Preprocessor.remote()
    tables = ray.get(preprocessor.prepare.remote(12))
    print(f"{len(tables)} tables prepared, first has {len(ray.get(tables[0]))} bytes")
    preprocessor.close.remote()
    time.sleep(3)
    print("rows", sum(len(ray.get(table)) for table in tables))


if __name__ == "__main__":
    main()
