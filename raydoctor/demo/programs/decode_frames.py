"""Decode video frames through a native library."""

import ctypes
import time

import ray

BROKEN_FRAME = 5
FRAME_BYTES = 64
FREED_ADDRESS = 0xDEAD000


def read_buffer(frame: int) -> bytes:
    """The bytes of a frame; the library freed that of the broken one."""
    if frame == BROKEN_FRAME:
        return ctypes.string_at(FREED_ADDRESS, FRAME_BYTES)
    return bytes([frame]) * FRAME_BYTES


@ray.remote(max_retries=0)
def decode(frame: int) -> float:
    """The brightness of a frame."""
    time.sleep(0.2)
    return sum(read_buffer(frame)) / FRAME_BYTES


def main() -> None:
    """Decode ten frames."""
    ray.init(
        num_cpus=2, object_store_memory=100 * 1024**2, include_dashboard=False, dashboard_port=0
    )
    for frame in range(10):
        print(f"frame {frame}: brightness {ray.get(decode.remote(frame)):.1f}")


if __name__ == "__main__":
    main()
