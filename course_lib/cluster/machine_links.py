"""What the machines of a cluster say to each other before training; `course cluster check` compares it.

Every task serves at its own address and asks at every other. One JSON object a line: who one is, then transfers that
show the link's rate, then, when one's own checks are done, whether they were fine.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

CONNECT_SECONDS = 2.0  # for one attempt
RETRY_SECONDS = 0.2
PROBE_BYTES = 2**16, 2**22  # sent over each link to see its rate: first few, then many where it is fast
PROBE_SECONDS = 0.3
LONGEST_LINE = 2**20
NOT_THE_CHECK = (ValueError, KeyError, TypeError, asyncio.IncompleteReadError)  # what another program's answer raises


@dataclass
class Peer:
    """Another task, as far as it is known.

    hello   what it said
    offset  its clock less ours, seconds
    doubt   by how much the offset may be wrong: half of the time that its answer took
    rate    bytes per second to it
    error   why it was not reached
    heard   it has reached us
    ready   it has ended its own checks, and whether they were fine; None before
    """

    hello: dict | None = None
    offset: float = 0.0
    doubt: float = 0.0
    rate: float = 0.0
    error: str = "it did not answer"
    heard: bool = False
    ready: bool | None = None


class Exchange:
    """One machine's side.

    hello      what it says of itself: a dict with its name and more
    addresses  every other task's name to its "host:port"
    peers      what is known of each of them
    fine       set it when this machine's own checks are done; True where they found no fault
    """

    def __init__(self, hello: Callable[[], dict], addresses: Mapping[str, str]):
        self.hello, self.addresses = hello, addresses
        self.peers = {name: Peer() for name in addresses}
        self.fine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked: list[asyncio.Task] = []
        self._following: list[asyncio.Task] = []  # the loop itself keeps only weak references
        self._answering: set[asyncio.Task] = set()

    async def serve(self, port: int) -> asyncio.Server:
        """Answer the others.

        Raises  OSError when the port is taken
        """
        return await asyncio.start_server(self._answer, "", port, limit=LONGEST_LINE)

    async def ask_all(self, seconds: float) -> None:
        """Reach every other task, or stop trying after so long."""
        self._asked = [asyncio.create_task(self._ask(name)) for name in self.peers]
        if self._asked:
            await asyncio.wait(self._asked, timeout=seconds)

    async def end(self, seconds: float) -> None:
        """Let the others hear how this machine's checks went, for so long, and stop."""
        if not self.fine.done():
            self.fine.set_result(False)
        if self._answering:
            await asyncio.wait(self._answering, timeout=seconds)
        for task in (*self._asked, *self._following, *self._answering):
            task.cancel()

    async def wait(self, holds: Callable[[Peer], bool], seconds: float) -> None:
        """Until it holds of every other task, or for so long."""
        until = time.monotonic() + seconds
        while not all(map(holds, self.peers.values())) and time.monotonic() < until:
            await asyncio.sleep(RETRY_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The other end of `_ask`."""
        self._answering.add(asyncio.current_task())
        asyncio.current_task().add_done_callback(self._answering.discard)
        with suppress(OSError, *NOT_THE_CHECK, asyncio.CancelledError):
            hello = await _object(reader)
            await _send(writer, self.hello())
            if hello["name"] in self.peers:
                self.peers[hello["name"]].heard = True
            while length := (await _object(reader))["probe"]:
                await reader.readexactly(min(length, PROBE_BYTES[1]))
                await _send(writer, {})
            await _send(writer, {"fine": await asyncio.shield(self.fine)})
        writer.close()

    async def _ask(self, name: str) -> None:
        """Reach another task, and learn who it is; wait until it has ended its own checks."""
        peer = self.peers[name]
        while True:
            try:
                reaching = asyncio.open_connection(*host_and_port(self.addresses[name]), limit=LONGEST_LINE)
                reader, writer = await asyncio.wait_for(reaching, CONNECT_SECONDS)
                began = time.time()
                await _send(writer, self.hello())
                hello = await asyncio.wait_for(_object(reader), CONNECT_SECONDS)
                ended = time.time()
                peer.offset, peer.doubt = hello["time"] - (began + ended) / 2, (ended - began) / 2
                peer.rate = await _rate(reader, writer)
                peer.hello = hello
                await _send(writer, {"probe": 0})
                break
            except TimeoutError:
                peer.error = "there is no answer; a firewall may drop what is sent, or the machine is off"
            except ConnectionRefusedError:
                peer.error = "nothing listens there, or a firewall refuses; does the check run on it?"
            except NOT_THE_CHECK:
                peer.error = "another program answers there, or the check has just ended; what listens on that port?"
            except OSError as error:
                peer.error = error.strerror or str(error)
            await asyncio.sleep(RETRY_SECONDS)  # nothing announces that the other machine's check has begun
        self._following.append(asyncio.create_task(self._follow(peer, reader, writer)))

    async def _follow(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, *NOT_THE_CHECK):
            peer.ready = (await _object(reader))["fine"]
        writer.close()


async def _rate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Bytes per second of a link, from one transfer that was answered."""
    rate, few = 0.0, PROBE_BYTES[0]
    for length in (few, PROBE_BYTES[1]):
        if rate:
            length = int(min(length, max(few, rate * PROBE_SECONDS)))
        began = time.perf_counter()
        await _send(writer, {"probe": length}, bytes(length))
        await _object(reader)
        rate = length / (time.perf_counter() - began)
    return rate


async def _object(reader: asyncio.StreamReader) -> dict:
    """What the other end says next.

    Raises  one of NOT_THE_CHECK when that is no object
    """
    said = json.loads(await reader.readline())
    if not isinstance(said, dict):
        raise ValueError("not an object")
    return said


async def _send(writer: asyncio.StreamWriter, content: Mapping, after: bytes = b"") -> None:
    writer.write(json.dumps(content).encode() + b"\n" + after)
    await writer.drain()


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
