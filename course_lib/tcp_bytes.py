"""How many bytes went out through TCP ports, from the Linux kernel's own counters; taught in notebooks/04.

Standard library only. The kernel counts for every connection what `ss --info`
shows; headers of TCP and repeated packets are not in it.

Source: linux/sock_diag.h, linux/inet_diag.h, and struct tcp_info in linux/tcp.h.
"""

import math
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP = 4, 20, 0x301
INET_DIAG_INFO = 2
ESTABLISHED = 1 << 1
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
SOCKET_BYTES = 72  # struct inet_diag_msg
PORT = HEADER.size + 4
BYTES_SENT = 200  # in struct tcp_info


def sent_bytes(addresses: Mapping[str, str]) -> dict[str, float]:
    """Bytes sent so far by the open connections of each of these ports of this machine.

    addresses  name to "host:port", such as a task's `addresses`
    Returns    name to bytes; nan on systems other than Linux, which do not count them
    """
    if sys.platform != "linux":
        return dict.fromkeys(addresses, math.nan)
    sent: Counter[int] = Counter()
    for family in (socket.AF_INET, socket.AF_INET6):
        for port, count in _connections(family):
            sent[port] += count
    return {name: sent[int(address.rpartition(":")[2])] for name, address in addresses.items()}


def _connections(family: int) -> Iterator[tuple[int, int]]:
    """Local port and bytes sent of each established connection in this network namespace."""
    question = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(HEADER.pack(HEADER.size + len(question), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 0, 0) + question)
        while True:
            answer = kernel.recv(2**20)
            while answer:
                length, kind, *_ = HEADER.unpack_from(answer)
                if kind != SOCK_DIAG_BY_FAMILY:  # the end of the list
                    return
                yield struct.unpack_from("!H", answer, PORT)[0], _sent(answer[HEADER.size + SOCKET_BYTES : length])
                answer = answer[length:]


def _sent(attributes: bytes) -> int:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == INET_DIAG_INFO:
            return struct.unpack_from("=Q", attributes, 4 + BYTES_SENT)[0]
        attributes = attributes[(length + 3) & ~3 :]
    return 0  # a connection that closes just now
