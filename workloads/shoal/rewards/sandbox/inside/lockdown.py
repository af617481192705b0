"""A process gives up what it does not need, for good: its user, other files, system calls, resources.

Each layer is one function, so that the math workers use those that they need and `guest` uses all. Nothing can be taken back: no new
privileges, hard limits equal to soft ones. Raises OSError when the kernel does not have a layer; the caller must then not go on.
Standard library only, because it runs inside the sandbox. Sources: landlock(7), seccomp(2), prctl(2), getrlimit(2).
"""

import ctypes
import os
import resource
import struct

from shoal.rewards.sandbox.inside.syscalls import filter_program

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SIGKILL = 9
"""Not from `signal`, whose import takes as long as all that is here."""
SECCOMP_NUMBER = {"x86_64": 317, "aarch64": 277}
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
LANDLOCK_CREATE, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT = 444, 445, 446
"""The same numbers on both architectures."""
LANDLOCK_VERSION_FLAG, LANDLOCK_RULE_PATH = 1, 1

# Bits of landlock_ruleset_attr.handled_access_fs, and how many of them each version of the interface knows.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
KNOWN_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
NEWEST_FILE_BITS = 16
TCP_BITS = 0b11
SCOPE_BITS = 0b11
"""Abstract Unix sockets and signals, from version 6."""
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | (1 << 14) | (1 << 15)
"""Bits that make sense for a rule about one file rather than a folder (with truncate and ioctl)."""


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


_libc = ctypes.CDLL(None, use_errno=True)


def no_new_privileges() -> None:
    """No program that is started from here on gains rights; the layers below ask for this first."""
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def become(uid: int) -> None:
    """Another user and group with no others, for good. Needs the right to (root); nobody may look into the process then."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_first_process() -> None:
    """Go on in a child. The first process of the namespace stays behind without pipes: the kernel ends all others with it, whatever user they are.

    bwrap may signal only its own user when it dies, and this process is still that user.
    """
    end_with_parent()
    child = os.fork()
    if child == 0:
        return
    os.closerange(0, 256)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)  # as bwrap tells of signals


def end_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends. Another user (`become`) would undo this, and so comes before."""
    if _libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def landlock_version() -> int:
    """Version of the kernel's Landlock interface, 0 where there is none."""
    try:
        return _call(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(LANDLOCK_VERSION_FLAG))
    except OSError:
        return 0


def only_these_files(readable: list[str], writable: list[str]) -> None:
    """Of the whole file system only these: to read and execute, and to write as well. Also no TCP where Landlock knows it."""
    version = landlock_version()
    if version == 0:
        raise OSError("this kernel has no Landlock")
    every = (1 << KNOWN_FILE_BITS.get(version, NEWEST_FILE_BITS)) - 1
    attributes = struct.pack("<QQQ", every, TCP_BITS if version >= 4 else 0, SCOPE_BITS if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(LANDLOCK_CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((readable, EXECUTE | READ_FILE | READ_DIR), (writable, every & ~EXECUTE)):
            for path in paths:
                _allow(ruleset, path, rights, every)
        _call(LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int, every: int) -> None:
    if not os.path.exists(path):
        return
    if not os.path.isdir(path):
        rights &= FILE_ONLY & every
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", rights, beneath)  # packed in the kernel's header as well
        _call(
            LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(LANDLOCK_RULE_PATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(beneath)


def only_these_calls() -> None:
    """Install the filter of `syscalls` on every thread of this process. OSError on an architecture without a table."""
    machine = os.uname().machine
    if machine not in SECCOMP_NUMBER:
        raise OSError(f"no table of system calls for {machine}; there is one for {', '.join(SECCOMP_NUMBER)}")
    code = filter_program(machine, os.getpid())
    instructions = ctypes.create_string_buffer(code, len(code))

    class SeccompProgram(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = SeccompProgram(len(code) // 8, ctypes.addressof(instructions))
    _call(
        SECCOMP_NUMBER[machine],
        ctypes.c_uint(SECCOMP_SET_MODE_FILTER),
        ctypes.c_uint(SECCOMP_FILTER_FLAG_TSYNC),
        ctypes.byref(program),
    )


def limit(kind: int, value: int) -> None:
    """Set a resource limit for good; a smaller one that is in force already stays."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
