"""`python -m course_lib.cluster.forkserver DESCRIPTOR MODULES`: import modules once, then fork supervisors on request.

A fork keeps only one thread of its parent, so this process only imports: it starts no device and no server.
"""

import asyncio
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress

from course_lib import devices
from course_lib.cluster import supervisor

LONGEST_REQUEST = 2**16  # bytes


def serve(requests: socket.socket, owner: int) -> None:
    """Answer each request with the process id of a supervisor, until the owner closes its end or is gone."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        with suppress(OSError):  # a kernel without pidfd, or the owner has just gone
            waiting.register(os.pidfd_open(owner), selectors.EVENT_READ)
        while all(ready.fileobj is requests for ready, _ in waiting.select()):
            request, files, *_ = socket.recv_fds(requests, LONGEST_REQUEST, 4)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                waiting.close()
                requests.close()
                _supervise(**json.loads(request), files=files, owner=owner)
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())


def _supervise(arguments: list[str], directory: str, files: list[int], owner: int) -> None:
    """Be a supervisor, and never return."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for file, standard in zip(files, (0, 1, 2)):
            os.dup2(file, standard)
            os.close(file)
        os.set_inheritable(files[3], False)  # the folder's lock
        os.chdir(directory)
        asyncio.run(supervisor.main(arguments, owner, forks=True))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    owner = os.getppid()
    devices.quieten()
    gc.disable()  # importing TensorFlow and Keras takes a quarter less without collections, which would free little
    for name in sys.argv[2:]:
        with suppress(Exception):  # the program meets the same error, and its author reads it there
            importlib.import_module(name)
    gc.freeze()  # a collection in a fork would touch, and so copy, all that the imports made
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are waited for by their owner
    serve(socket.socket(fileno=int(sys.argv[1])), owner)
