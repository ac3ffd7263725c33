"""A submission's own world inside the sandbox: namespaces, limits, a scratch folder. Standard library, Linux.

bubblewrap makes the sandbox. These namespaces keep the submissions that pass
through one sandbox apart: processes, network, files and shared memory end with the first
process of each.

Source: namespaces(7), user_namespaces(7), seccomp(2), linux/seccomp.h, linux/filter.h.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping

from course_lib.staff.grade.sandbox_side import SCRATCH

GIB, MIB = 2**30, 2**20

_NEW = {"mount": 0x20000, "ipc": 0x8000000, "user": 0x10000000, "process": 0x20000000, "network": 0x40000000}
_NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES, _FILTER = 1, 4, 22, 38, 2
_CAPABILITY_VERSION = 0x20080522

# System calls that reach into other processes or the kernel, and that a course's program has no use for:
# each name with its number on x86-64 and on arm64.
_REFUSED = """
    ptrace 101 117            process_vm_readv 310 270   process_vm_writev 311 271
    kcmp 312 272              pidfd_getfd 438 438        mount 165 40
    umount2 166 39            pivot_root 155 41          unshare 272 97
    setns 308 268             open_tree 428 428          move_mount 429 429
    fsopen 430 430            fsconfig 431 431           fsmount 432 432
    fspick 433 433            mount_setattr 442 442      open_by_handle_at 304 265
    fanotify_init 300 262     swapon 167 224             swapoff 168 225
    kexec_load 246 104        kexec_file_load 320 294    init_module 175 105
    finit_module 313 273      delete_module 176 106      add_key 248 217
    request_key 249 218       keyctl 250 219             bpf 321 280
    perf_event_open 298 241   userfaultfd 323 282        memfd_create 319 279
    io_uring_setup 425 425    io_uring_enter 426 426     io_uring_register 427 427
    shmget 29 194             msgget 68 186              semget 64 190
    memfd_secret 447 447
""".split()
_MACHINES = ("x86_64", "aarch64")
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": (56, 435), "aarch64": (220, 435)}  # clone, and clone3, whose flags no filter can read
_OTHER_NUMBERS = 0x40000000  # from here on x86-64 has x32's numbers of the same calls, where a kernel knows them
_REFUSE, _PRETEND, _ALLOW, _NO_SUCH_CALL, _KILL = 0x00050001, 0x00050000, 0x7FFF0000, 0x00050026, 0x80000000
# Memory that belongs to no process could be neither counted nor freed: it is had from the scratch folder alone.
_MMAP, _SOCKET, _SETSOCKOPT = ({"x86_64": x86, "aarch64": arm} for x86, arm in ((9, 222), (41, 198), (54, 208)))
_SHARED_ANONYMOUS = 0x21
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)  # no vsock: it would reach the host
SOCKET_BYTES = 212_992  # that a socket holds unread, with Linux' own buffers, which no program here can enlarge
SCRATCH_FILES = 65_536  # an empty one takes memory, too

_libc = ctypes.CDLL(None, use_errno=True)


def enter_new() -> None:
    """Leave for a new user, process, mount, network and IPC namespace; the next child is its first process.

    Raises  OSError where the kernel does not let a namespace be nested
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", sum(_NEW.values()))
    for name, text in {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that made it ends."""
    _call("prctl", _SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def furnish(scratch_bytes: int, kept: Iterable[str] = ()) -> None:
    """In the first process: its own /proc, loopback, and one bounded scratch folder behind all that can be written.

    Nothing in the scratch folder can be executed or loaded as a library.

    kept  folders that stay where they are, also where that is below /tmp
    """
    quiet = _NO_SUID | _NO_DEVICES | _NO_EXEC
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc", quiet)
    _mount("tmpfs", SCRATCH, "tmpfs", quiet, f"size={scratch_bytes},nr_inodes={SCRATCH_FILES},mode=700")
    covered = {".tmp": "/tmp", ".shm": "/dev/shm"}
    held = {
        path: os.open(path, os.O_PATH)
        for path in kept
        if path.startswith(tuple(f"{place}/" for place in covered.values()))
    }
    for name, place in covered.items():
        os.mkdir(f"{SCRATCH}/{name}")
        _mount(f"{SCRATCH}/{name}", place, None, _BIND)
    for path, folder in held.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{folder}", path, None, _BIND | _RECURSIVE)
        os.close(folder)
    _loopback_up()
    os.chdir(SCRATCH)


def try_out() -> None:
    """Make and furnish a submission's namespaces; exit with 1 and the kernel's words where it refuses."""
    enter_new()
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    furnish(MIB)


def give_up_rights() -> None:
    """Drop what the new user namespace gave: no capability is left, none can come back, and the calls are filtered."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("capset", header, struct.pack("=6I", *[0] * 6))
    _filter_calls()


def limit(limits: Mapping[str, float]) -> None:
    """Bound what each process may take. limits: "memory_gib", "processes", "file_mib"."""
    memory, file = int(limits["memory_gib"] * GIB), int(limits["file_mib"] * MIB)
    wanted = {
        resource.RLIMIT_DATA: memory,  # what can be written; TensorFlow takes much address space, which costs nothing
        resource.RLIMIT_FSIZE: file,
        resource.RLIMIT_NPROC: int(limits["processes"]),
        resource.RLIMIT_NOFILE: 4096,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 * MIB,
    }
    for kind, most in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        value = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(kind, (value, value))


def hide_memory() -> None:
    """Keep every other process of this user from this one's memory, under /proc and by ptrace; a fork inherits it."""
    _call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)


def own_bytes() -> int:
    """Bytes that this namespace's processes hold, beyond files and what forks of this one began with.

    Page tables and what waits in sockets count. What they share is in the scratch folder, which has its own limit.
    """
    total = _unread_bytes()
    begun_with, call = _private_bytes("self"), _read("self", "cmdline")
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            total += max(0, _private_bytes(name) - begun_with * (_read(name, "cmdline") == call))
    return total


def _private_bytes(process: str) -> int:
    return 1024 * sum(map(int, re.findall(r"^(?:RssAnon|VmPTE|VmSwap):\s*(\d+)", _read(process, "status"), re.M)))


def _unread_bytes() -> int:
    """What this namespace's sockets may hold: Linux' own buffer each, and what TCP's own grow to."""
    tables = {name: _read("net", name) for name in ("unix", "netlink", "udp", "udp6", "tcp", "tcp6")}
    rows = sum(len(table.splitlines()) - 1 for table in tables.values())
    queued = re.findall(r" ([0-9A-F]{8}):([0-9A-F]{8}) ", tables["tcp"] + tables["tcp6"])
    return rows * SOCKET_BYTES + sum(int(number, 16) for queues in queued for number in queues)


def _read(process: str, name: str) -> str:
    with open(f"/proc/{process}/{name}") as file:
        return file.read()


def _call(name: str, *arguments) -> None:
    if getattr(_libc, name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    source, target, kind, options = (text.encode() if text else None for text in (source, target, kind, options))
    _call("mount", source, target, kind, ctypes.c_ulong(flags), options)


def _loopback_up() -> None:
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, get_flags, request))[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def _argument(place: int) -> int:
    """Where the low half of a call's argument stands in what a filter reads."""
    return 16 + 8 * place


def _filter_calls() -> None:
    """Refuse the calls above, every clone into a new namespace, and what _SHARED_ANONYMOUS and _FAMILIES speak of.

    clone3 is answered as an old kernel would; a larger buffer of a socket is granted and not made.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        return  # bubblewrap and the namespaces protect without it
    clone, clone3 = _CLONE[machine]
    load, bits, equal, at_least, any_bit, give = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURE[machine]), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, _OTHER_NUMBERS), (give, 0, 0, _REFUSE)]
    for number in map(int, _REFUSED[1 + _MACHINES.index(machine) :: 3]):
        program += [(equal, 0, 1, number), (give, 0, 0, _REFUSE)]
    program += [(equal, 0, 1, clone3), (give, 0, 0, _NO_SUCH_CALL), (equal, 0, 4, clone), (load, 0, 0, 16)]
    program += [
        (any_bit, 0, 1, sum(_NEW.values()) | 0x2000000 | 0x4000000),
        (give, 0, 0, _REFUSE),
        (give, 0, 0, _ALLOW),
    ]
    program += [(equal, 0, 5, _MMAP[machine]), (load, 0, 0, _argument(3)), (bits, 0, 0, _SHARED_ANONYMOUS)]
    program += [(equal, 0, 1, _SHARED_ANONYMOUS), (give, 0, 0, _REFUSE), (give, 0, 0, _ALLOW)]
    program += [(equal, 0, 3 + len(_FAMILIES), _SOCKET[machine]), (load, 0, 0, _argument(0))]
    program += [(equal, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]
    program += [(give, 0, 0, _REFUSE), (give, 0, 0, _ALLOW)]
    program += [(equal, 0, 6, _SETSOCKOPT[machine]), (load, 0, 0, _argument(1)), (equal, 0, 4, socket.SOL_SOCKET)]
    program += [(load, 0, 0, _argument(2)), (equal, 1, 0, socket.SO_SNDBUF), (equal, 0, 1, socket.SO_RCVBUF)]
    program += [(give, 0, 0, _PRETEND), (give, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    kept = ctypes.create_string_buffer(code)
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(kept))
    _call("prctl", _SET_SECCOMP, _FILTER, filter_, 0, 0)
