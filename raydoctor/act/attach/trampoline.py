"""Machine code that a thread of another process executes: it calls a function and restores the thread's
state.

A debugger that calls a function in another process (gdb) stops the process again afterwards to restore its
registers. If the debugger is killed meanwhile, the thread is lost: 6 of 28 processes died when their debugger
was killed (measured with hypno 1.1.0). This code restores the state itself, without the process that started
it: a thread either has not started to execute it, or will return from it.

It follows the System V ABI for AMD64: the stack pointer is a multiple of 16 at a call; a function may change
rax, rcx, rdx, rsi, rdi, r8-r11, all vector registers and `errno`; and the 128 bytes below the stack pointer
belong to the interrupted code.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping

BELOW = 256
"""Distance from the interrupted code's stack pointer to ours, where the return address is stored."""

_PUSH = bytes.fromhex(
    "9c"  # pushfq
    "505152535556574150415141524153415441554156"  # rax rcx rdx rbx rbp rsi rdi r8 .. r14
    "4157"  # push r15
    "4889e5"  # mov rbp, rsp
    "fc"  # cld
    "4881ec00400000"  # sub rsp, 0x4000: more than any processor's vector state (11 KB with AMX)
    "4883e4c0"  # and rsp, -64
    "31c0"  # xor eax, eax
)
_HEADER = b"".join(
    bytes.fromhex("48898424") + struct.pack("<I", 512 + 8 * word)  # mov [rsp + 512 + 8 n], rax
    for word in range(8)
)
"""XSAVE requires that its 64-byte header is zero."""
_ALL_PARTS = bytes.fromhex("83c8ff89c2")  # or eax, -1; mov edx, eax
_SAVE = _ALL_PARTS + bytes.fromhex("480fae2424")  # xsave64 [rsp]
_RESTORE = _ALL_PARTS + bytes.fromhex("480fae2c24")  # xrstor64 [rsp]
_KEEP_ERRNO = bytes.fromhex("4989c4458b2c24")  # mov r12, rax; mov r13d, [r12]
_PUT_ERRNO = bytes.fromhex("45892c24")  # mov [r12], r13d
_POP = bytes.fromhex(
    "4889ec"  # mov rsp, rbp
    "415f415e415d415c415b415a41594158"  # pop r15 .. r8
    "5f5e5d5b5a5958"  # rdi rsi rbp rbx rdx rcx rax
    "9d"  # popfq
)
_LEAVE = b"\xc2" + struct.pack(
    "<H", BELOW - 8
)  # ret: to the address at the top of the stack, and release the rest


FUNCTIONS = (
    *("PyGILState_Ensure", "PyGILState_Release", "PyRun_SimpleString", "Py_AddPendingCall"),
    *("PyErr_CheckSignals", "__errno_location", "pthread_create", "pthread_self", "pthread_detach"),
)
"""Required functions of libpython (or the program itself) and the C library."""


def is_supported() -> bool:
    """Whether this machine's processors can execute it."""
    if platform.machine() != "x86_64":
        return False
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        return any(line.startswith("flags") and " xsave " in f"{line} " for line in stream)


def calling(functions: Mapping[str, int], text: int) -> bytes:
    """Code that makes Python execute the text at that address, in this thread, once it gets the GIL."""
    return _whole(functions, _execute(functions, text))


def queueing(functions: Mapping[str, int], text: int) -> bytes:
    """Code that makes Python execute the text at that address as a pending call of the main thread.

    It needs neither the GIL nor a consistent state: a running thread may be in the middle of an allocation.
    """
    return _whole(
        functions,
        _into(_RDI, functions["PyRun_SimpleString"])
        + _into(_RSI, text)
        + _call(functions["Py_AddPendingCall"]),
    )


def spawning(functions: Mapping[str, int], entry: int) -> bytes:
    """Code that starts a thread at that address (`thread`).

    It does not wait for the GIL: the interrupted native code may hold a lock that the GIL's holder waits for.
    """
    return _whole(
        functions,
        b"\x48\x83\xec\x10"  # sub rsp, 16
        + b"\x48\x89\xe7"  # mov rdi, rsp: address for the thread's id
        + b"\x31\xf6"  # xor esi, esi
        + _into(_RDX, entry)
        + b"\x31\xc9"  # xor ecx, ecx
        + _call(functions["pthread_create"])
        + b"\x48\x83\xc4\x10",  # add rsp, 16
    )


def thread(functions: Mapping[str, int], text: int) -> bytes:
    """Code of a detached thread that makes Python execute the text at that address, and ends."""
    return (
        b"\x53"  # push rbx: aligns the stack to 16
        + _call(functions["pthread_self"])
        + b"\x48\x89\xc7"  # mov rdi, rax
        + _call(functions["pthread_detach"])
        + _execute(functions, text)
        + b"\x31\xc0\x5b\xc3"  # xor eax, eax; pop rbx; ret
    )


def _execute(functions: Mapping[str, int], text: int) -> bytes:
    return (
        _call(functions["PyGILState_Ensure"])
        + b"\x89\xc3"  # mov ebx, eax
        + _into(_RDI, text)
        + _call(functions["PyRun_SimpleString"])
        + b"\x89\xdf"  # mov edi, ebx
        + _call(functions["PyGILState_Release"])
    )


def _whole(functions: Mapping[str, int], body: bytes) -> bytes:
    return (
        _PUSH
        + _HEADER
        + _SAVE
        + _call(functions["__errno_location"])
        + _KEEP_ERRNO
        + body
        + _PUT_ERRNO
        + _RESTORE
        + _POP
        + _LEAVE
    )


_RAX, _RDX, _RSI, _RDI = b"\x48\xb8", b"\x48\xba", b"\x48\xbe", b"\x48\xbf"


def _into(register: bytes, value: int) -> bytes:
    return register + struct.pack("<Q", value)


def _call(address: int) -> bytes:
    return _into(_RAX, address) + b"\xff\xd0"  # call rax
