"""What a thread waits in, by the kernel and by native frames.

Native frames are the most exact, then the kernel's own function (`wchan`, names of Linux 5.4 to 6.18), then
the number of the call (`arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h` for
aarch64).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from raydoctor.cluster.samples import SampledFrame, SampledThread
from raydoctor.model.patterns import pattern
from raydoctor.waits.kinds.catalog import Activity, WaitCode

Call = Literal[
    "sleep", "futex", "child", "recv", "send", "connect", "accept", "poll", "select", "pipe", "terminal",
    "file-lock", "read", "start-child", "device", "frozen", "semaphore",
]  # fmt: skip
"""The kind of call; `futex` is any lock of threads, `read` a file or a pipe."""

WAIT_OF_CALL: Mapping[Call, WaitCode] = {
    "sleep": "sleep",
    "futex": "lock",
    "child": "subprocess",
    "recv": "socket",
    "send": "send",
    "connect": "connect",
    "accept": "accept",
    "poll": "poll",
    "pipe": "pipe",
    "terminal": "terminal",
    "file-lock": "file-lock",
    "semaphore": "process-semaphore",
    "start-child": "start-child",
    "device": "disk",
    "frozen": "frozen",
    "select": "select",
    "read": "read",
}
"""What a thread waits in whose stack adds nothing to its call."""

_START_CHILD = r"kernel_clone|_do_fork|wait_for_vfork_done"
_FROZEN = r"refrigerator|do_freezer_trap"
_FUSE = r"request_wait_answer|fuse_"
_DEVICE = (
    r"folio_wait|wait_on_(?:page|buffer|bit)|io_schedule|blk|bio_|jbd2|ext4_|xfs_|btrfs_|sync_inodes|nvme|scsi"
    rf"|nfs|rpc_wait|cifs|smb|ceph|lustre|cl_sync|{_FUSE}"
)
_WCHANS: tuple[tuple[Call, str], ...] = (
    ("frozen", _FROZEN),
    ("start-child", _START_CHILD),
    ("sleep", "nanosleep"),
    ("futex", "futex"),
    ("child", "^do_wait$|wait_consider_task|kernel_wait"),
    ("accept", "csk_(?:accept|wait_for_connect)"),
    ("connect", "inet_wait_for_connect|inet_stream_connect|unix_wait_for_peer"),
    (
        "recv",
        "unix_stream_(?:read_generic|data_wait)|wait_woken|sk_wait_data|skb_(?:wait_for_more|recv)"
        "|(?:tcp|inet|udp)_recvmsg",
    ),
    ("send", "sk_stream_wait|sock_(?:alloc_send|wait_for_wmem)|tcp_sendmsg"),
    ("pipe", "pipe_(?:read|write|wait)|wait_for_partner|fifo_open"),
    ("terminal", "tty_read"),
    ("file-lock", "locks?_lock_inode|(?:flock|posix|locks?)_lock_|fcntl_setlk|do_lock_file_wait"),
    ("semaphore", "do_semtimedop|do_msgrcv|mqueue|wq_sleep"),
    ("poll", "do_epoll_wait|ep_poll"),
    ("device", _DEVICE),
)
_NATIVE: tuple[tuple[Call, str], ...] = (
    ("sleep", r"^_*(?:time_sleep|pysleep|clock_nanosleep|nanosleep|usleep|sleep)$"),
    (
        "futex",
        r"^_*(?:(?:lock_)?PyThread_acquire|acquire_timed|PyMutex_Lock|PySemaphore_Wait|r?lock_acquire)",
    ),
    ("child", r"^_*(?:wait4|waitpid|waitid|os_wait|wait3)"),
    ("recv", r"^_*(?:recv(?:from|msg|mmsg)?|sock_recv\w*|SSL_read\w*|ssl3_read\w*)(?:$|_)"),
    ("send", r"^_*(?:send(?:to|msg|mmsg|file)?|sock_send\w*|SSL_write\w*)(?:$|_)"),
    ("connect", r"^_*(?:connect|internal_connect|sock_connect|SSL_connect|SSL_do_handshake)$"),
    ("accept", r"^_*(?:accept4?|sock_accept)$"),
    ("poll", r"^_*(?:p?poll|epoll_p?wait2?|p?select|select_select\w*)$"),
    ("file-lock", r"^_*(?:flock|fcntl_(?:flock|lockf)\w*|lockf)$"),
    ("semaphore", r"^_*(?:sem_(?:timed|clock)?wait|do_sem|semop|mq_\w*receive)"),
    (
        "read",
        r"^_*(?:p?(?:read|write)(?:v|64)?|fsync|fdatasync|open(?:at)?(?:64)?|stat\w*|getdents(?:64)?)$",
    ),
)
_X86: tuple[tuple[Call, frozenset[int]], ...] = (
    ("read", frozenset({0, 1, 2, 17, 18, 19, 20, 74, 75, 257})),
    ("poll", frozenset({7, 232, 271, 281, 441})),
    ("select", frozenset({23, 270})),
    ("sleep", frozenset({35, 230})),
    ("connect", frozenset({42})),
    ("accept", frozenset({43, 288})),
    ("send", frozenset({44, 46, 307})),
    ("recv", frozenset({45, 47, 299})),
    ("start-child", frozenset({56, 58, 435})),
    ("child", frozenset({61, 247})),
    ("semaphore", frozenset({65, 220})),
    ("file-lock", frozenset({72, 73})),
    ("futex", frozenset({202})),
)
_ARM: tuple[tuple[Call, frozenset[int]], ...] = (
    ("read", frozenset({56, 63, 64, 65, 66, 67, 68, 82, 83})),
    ("poll", frozenset({22, 73, 441})),
    ("select", frozenset({72})),
    ("sleep", frozenset({101, 115})),
    ("connect", frozenset({203})),
    ("accept", frozenset({202, 242})),
    ("send", frozenset({206, 211, 269})),
    ("recv", frozenset({207, 212, 243})),
    ("start-child", frozenset({220, 435})),
    ("child", frozenset({95, 260})),
    ("semaphore", frozenset({192, 193})),
    ("file-lock", frozenset({25, 32})),
    ("futex", frozenset({98})),
)


_UNINTERRUPTIBLE: tuple[tuple[str, WaitCode], ...] = (
    (_FROZEN, "frozen"),
    (_START_CHILD, "start-child"),
    ("nfs|rpc_wait", "nfs"),
    (_FUSE, "fuse"),
    ("cifs|smb", "smb"),
    ("ceph|lustre|cl_sync", "network-file-system"),
    (f"^$|{_DEVICE}", "disk"),
)
"""By the kernel's function, what a thread in state D waits for."""
_RUNTIME = pattern(
    r"(?:libc|libpthread|libm|ld|libffi|libpython|python|libstdc\+\+|_ctypes|callproc)(?:[\d.-]|$)"
)


def uninterruptible(wchan: str) -> Activity:
    """What a thread in state D waits for: a disk, unless the kernel's function is another one's."""
    known = (Activity(code) for names, code in _UNINTERRUPTIBLE if re.search(names, wchan))
    return next(known, Activity("kernel", wchan))


def call_of(
    thread: SampledThread, native: Sequence[SampledFrame], is_arm: bool = False
) -> Call | None:
    """The call that a thread waits in: by its native frames, the kernel's function, or the call's number."""
    by_frames = _first(_NATIVE, [frame.function for frame in native])
    if by_frames not in (None, "read"):
        return by_frames
    by_kernel = _first(_WCHANS, [thread.wchan] if thread.wchan else [])
    if by_kernel is not None:
        return by_kernel
    numbers = _ARM if is_arm else _X86
    return by_frames or next((call for call, known in numbers if thread.syscall in known), None)


def _first(table: Iterable[tuple[Call, str]], names: Iterable[str]) -> Call | None:
    """The first row that fits any name: Python up to 3.10 sleeps in `select`, below `pysleep`."""
    given = tuple(names)
    return next(
        (call for call, like in table if any(re.search(like, name) for name in given)), None
    )


_ARM_ALONE = frozenset({22, 98, 101, 115, 260})
"""epoll_pwait, futex, nanosleep, clock_nanosleep, wait4 of aarch64; on x86_64 these numbers never wait."""


def is_arm(threads: Iterable[SampledThread]) -> bool:
    """Whether a process uses the call numbers of aarch64."""
    return any(thread.syscall in _ARM_ALONE for thread in threads)


def takes_gil(native: Sequence[SampledFrame]) -> bool:
    """Whether a thread waits for the interpreter's lock and nothing else."""
    return any(frame.function.startswith("take_gil") for frame in native)


def most_specific(native: Sequence[SampledFrame]) -> SampledFrame | None:
    """The innermost native function of neither libc nor the interpreter nor ctypes, if there is one."""
    named = [frame for frame in native if not frame.function.startswith("0x")]
    return next((frame for frame in named if not is_runtime(frame)), named[0] if named else None)


def is_acquire(native: Iterable[SampledFrame]) -> bool:
    """Whether the native frames are those of a lock of Python's."""
    return _first(_NATIVE[1:2], [frame.function for frame in native]) is not None


def is_informative(native: SampledFrame) -> bool:
    """Whether a native frame adds anything: an address without a name in the C library does not."""
    return not (native.function.startswith("0x") and is_runtime(native))


def is_runtime(frame: SampledFrame) -> bool:
    """Whether a native frame is of the C library or of Python itself."""
    return bool(_RUNTIME.match(frame.file.rpartition("/")[2]))
