"""System calls that a program in a sandbox may make, and the classic BPF filter that lets only these through.

An allow-list: what is not named fails, with "not permitted" for what programs try (processes, sockets) and "no
such call" for the rest. So the C library falls back to what it has. A program computes, reads its input and writes its output; it starts no
process, opens no socket, and signals nobody but itself. Threads are allowed. Pure, except for the numbers of the machine's architecture; called by
`lockdown`.

Numbers are those of the kernel's headers (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
"""

import errno
import struct

X86_64 = """
    read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 lseek=8 close=3 close_range=436
    fstat=5 stat=4 lstat=6 newfstatat=262 statx=332 access=21 faccessat=269 faccessat2=439 open=2 openat=257
    creat=85 readlink=89 readlinkat=267 getdents=78 getdents64=217 getcwd=79 chdir=80 fchdir=81
    fsync=74 fdatasync=75 sync_file_range=277 ftruncate=77 fallocate=285 rename=82 renameat=264
    renameat2=316 mkdir=83 mkdirat=258 rmdir=84 link=86 linkat=265 unlink=87 unlinkat=263 symlink=88 symlinkat=266
    umask=95 statfs=137 fstatfs=138 dup=32 dup2=33 dup3=292 pipe=22
    pipe2=293 poll=7 ppoll=271 select=23 pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233
    epoll_wait=232 epoll_pwait=281 eventfd2=290 sendfile=40 copy_file_range=326 splice=275 mmap=9 mprotect=10
    munmap=11 mremap=25 madvise=28 brk=12 mincore=27 msync=26 membarrier=324 rt_sigaction=13 rt_sigprocmask=14
    rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131 pause=34 alarm=37
    getitimer=36 setitimer=38 restart_syscall=219 nanosleep=35 clock_nanosleep=230 clock_gettime=228
    clock_getres=229 gettimeofday=96 time=201 times=100 timer_create=222 timer_settime=223 timer_gettime=224
    timer_delete=226 timer_getoverrun=225 futex=202 set_robust_list=273 get_robust_list=274 set_tid_address=218
    rseq=334 sched_yield=24 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145
    sched_get_priority_max=146 sched_get_priority_min=147 getpid=39 getppid=110 gettid=186 getuid=102 geteuid=107
    getgid=104 getegid=108 getgroups=115 getpgrp=111 getpgid=121 getsid=124 getresuid=118 getresgid=120
    getpriority=140 capget=125 getrlimit=97 setrlimit=160 getrusage=98 sysinfo=99 uname=63 getcpu=309 getrandom=318
    arch_prctl=158 exit=60 exit_group=231
"""

AARCH64 = """
    read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 lseek=62 close=57
    close_range=436 fstat=80 newfstatat=79 statx=291 faccessat=48 faccessat2=439 openat=56 readlinkat=78
    getdents64=61 getcwd=17 chdir=49 fchdir=50 fsync=82 fdatasync=83 sync_file_range=84
    ftruncate=46 fallocate=47 renameat=38 renameat2=276 mkdirat=34 linkat=37 unlinkat=35 symlinkat=36
    umask=166 statfs=43 fstatfs=44 dup=23 dup3=24 pipe2=59 ppoll=73 pselect6=72
    epoll_create1=20 epoll_ctl=21 epoll_pwait=22 eventfd2=19 sendfile=71 copy_file_range=285 splice=76 mmap=222
    mprotect=226 munmap=215 mremap=216 madvise=233 brk=214 mincore=232 msync=227 membarrier=283 rt_sigaction=134
    rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136 rt_sigtimedwait=137 rt_sigsuspend=133 sigaltstack=132
    getitimer=102 setitimer=103 restart_syscall=128 nanosleep=101 clock_nanosleep=115 clock_gettime=113
    clock_getres=114 gettimeofday=169 times=153 timer_create=107 timer_settime=110 timer_gettime=108
    timer_delete=111 timer_getoverrun=109 futex=98 set_robust_list=99 get_robust_list=100 set_tid_address=96
    rseq=293 sched_yield=124 sched_getaffinity=123 sched_getparam=121 sched_getscheduler=120
    sched_get_priority_max=125 sched_get_priority_min=126 getpid=172 getppid=173 gettid=178 getuid=174 geteuid=175
    getgid=176 getegid=177 getgroups=158 getpgid=155 getsid=156 getresuid=148 getresgid=150 getpriority=141
    capget=90 getrlimit=163 setrlimit=164 getrusage=165 sysinfo=179 uname=160 getcpu=168 getrandom=278 exit=93
    exit_group=94
"""

REFUSED = {
    "x86_64": """
        fork=57 vfork=58 execve=59 execveat=322 socket=41 socketpair=53 connect=42 bind=49 listen=50 accept=43 accept4=288 ptrace=101
        chmod=90 fchmod=91 fchmodat=268 fchmodat2=452 chown=92 fchown=93 lchown=94 fchownat=260 utime=132 utimes=235 futimesat=261
        utimensat=280 truncate=76 flock=73
    """,
    "aarch64": """
        execve=221 execveat=281 socket=198 socketpair=199 connect=203 bind=200 listen=201 accept=202 accept4=242 ptrace=117
        fchmod=52 fchmodat=53 fchmodat2=452 fchown=55 fchownat=54 utimensat=88 truncate=45 flock=32
    """,
}
"""Answered "not permitted", as a person would expect; every other number that is not allowed gets "no such call".

Landlock has no right for modes, owners, times and locks, and none for `truncate` before its version 3: a program that runs as the judge's own user
could change or block the files that every later sandbox reads.
"""

CHECKED = {
    "x86_64": {"clone": 56, "kill": 62, "tgkill": 234, "prlimit64": 302, "ioctl": 16, "fcntl": 72},
    "aarch64": {"clone": 220, "kill": 129, "tgkill": 131, "prlimit64": 261, "ioctl": 29, "fcntl": 25},
}
"""Allowed with some arguments only."""

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
"""On x86-64 numbers with this bit are a second table of the same calls, which would pass by the list."""

CLONE_THREAD = 0x10000
TERMINAL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: what opening and asking about a file needs, and no more."""

DESCRIPTOR_REQUESTS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. Not F_SETOWN and F_SETSIG, with which a
descriptor signals any process of the same user, and no leases."""

# struct seccomp_data: int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6] (low words first on both architectures)
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def numbers(table: str) -> dict[str, int]:
    """Name and number of each call of a table above."""
    return {name: int(number) for name, _, number in (entry.partition("=") for entry in table.split())}


def allowed(machine: str) -> dict[str, int]:
    """Calls that are let through whatever their arguments; KeyError for an architecture without a table."""
    return numbers({"x86_64": X86_64, "aarch64": AARCH64}[machine])


def filter_program(machine: str, pid: int) -> bytes:
    """The filter as an array of `struct sock_filter` (8 bytes each); `pid` is the one process that may be signalled and limited."""
    checked = CHECKED[machine]
    code = [
        *_load(ARCHITECTURE),
        *_unless_equal(AUDIT_ARCHITECTURE[machine], [_answer(KILL_PROCESS)]),
        *_load(NUMBER),
    ]
    if machine == "x86_64":
        code += [_instruction(JUMP_SET, X32_BIT, 0, 1), _answer(KILL_PROCESS)]
    code += _if_equal(checked["clone"], [*_load(ARGUMENTS), _instruction(JUMP_SET, CLONE_THREAD, 0, 1), _answer(ALLOW)])
    for name in ("kill", "tgkill"):
        code += _if_equal(checked[name], _one_of(ARGUMENTS, (pid,)))
    code += _if_equal(checked["prlimit64"], _one_of(ARGUMENTS, (0, pid)))
    code += _if_equal(checked["ioctl"], _one_of(ARGUMENTS + 8, TERMINAL_REQUESTS))
    code += _if_equal(checked["fcntl"], _one_of(ARGUMENTS + 8, DESCRIPTOR_REQUESTS))
    for number in sorted(allowed(machine).values()):
        code += [_instruction(JUMP_EQUAL, number, 0, 1), _answer(ALLOW)]
    for number in sorted(numbers(REFUSED[machine]).values()):
        code += [_instruction(JUMP_EQUAL, number, 0, 1), _answer(ERRNO | errno.EPERM)]
    code.append(_answer(ERRNO | errno.ENOSYS))
    return b"".join(code)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _answer(value: int) -> bytes:
    return _instruction(RETURN, value)


def _load(offset: int) -> list[bytes]:
    return [_instruction(LOAD, offset)]


def _unless_equal(value: int, block: list[bytes]) -> list[bytes]:
    return [_instruction(JUMP_EQUAL, value, len(block), 0), *block]


def _if_equal(value: int, block: list[bytes]) -> list[bytes]:
    """A block that decides about one call: what it does not allow is not permitted."""
    block = [*block, _answer(ERRNO | errno.EPERM)]
    return [_instruction(JUMP_EQUAL, value, 0, len(block)), *block]


def _one_of(offset: int, values: tuple[int, ...]) -> list[bytes]:
    """Allow when the low word of an argument is one of these; the high word of an int argument means nothing to the kernel."""
    block = _load(offset)
    for value in values:
        block += [_instruction(JUMP_EQUAL, value, 0, 1), _answer(ALLOW)]
    return block
