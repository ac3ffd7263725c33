"""`course cluster check` on two machines: network namespaces, each with its own command, and one fault at a time."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from network_links import needs_links

from course_lib import cluster
from course_lib.cli import main
from course_lib.cluster import limited_links
from course_lib.cluster.machine_links import Exchange

HOSTS = ["10.77.0.1:23450", "10.77.0.2:23450"]
SECONDS = 4  # to wait for the other machine
COMMAND = [sys.executable, "-c", "import sys; from course_lib.cli import main; sys.exit(main())", "cluster", "check"]


def config(index: int, workers: Sequence[str] = HOSTS) -> str:
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}})


@pytest.fixture
def machines():
    lab = limited_links.NetworkLab(2, cluster.Link(200))
    lab.open()
    yield lab
    lab.close()


def check(lab, configs=None, before=("", ""), folder=None, environment=({}, {}), only=(0, 1), seconds=SECONDS):
    """Both machines' findings, as {subject: (fine, said)}; before: a shell's commands on each machine."""
    configs = configs or [config(0), config(1)]
    running = []
    for place in only:
        words = [*COMMAND, "--config", configs[place], "--json", "--seconds", str(seconds)]
        words += ["--folder", str(folder)] if folder else []
        shell = ["unshare", "--mount", "sh", "-c", f'{before[place]}\nexec "$@"', "sh", *words]
        variables = {**os.environ, **environment[place]}
        command = [*lab.command_prefix(place), *shell]
        running.append(
            subprocess.Popen(
                command,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=lab._namespaces,
            )
        )
    answers = []
    for process in running:
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 1) and not err, err
        answer = json.loads(out)
        assert answer["fine"] == (process.returncode == 0) == all(one["fine"] for one in answer["findings"])
        answers.append(answer["findings"])
    return answers


def faults(findings) -> dict[str, str]:
    said = {}
    for one in findings:
        if not one["fine"]:
            said[one["subject"]] = f"{said.get(one['subject'], '')} {one['said']}"
    return said


@pytest.mark.slow
@needs_links
def test_two_sound_machines_sum_with_tensorflow_at_the_links_rate(machines, tmp_path):
    for findings in check(machines, folder=tmp_path, seconds=60):
        assert faults(findings) == {}
        said = {one["subject"]: one["said"] for one in findings}
        assert list(said) == ["names", "port", "reach", "lists", "versions", "clock", "folder", "all-reduce"]
        # 4 MiB over two workers are 4 MiB each way: 200 megabit/s, 0.956 of them data
        measured, formula = (float(number) for number in re.findall(r"([\d.]+) s", said["all-reduce"]))
        assert 0.2 < 4 * 2**20 * 8 / (0.956 * 200e6) / formula < 1.7  # a busy machine shows less
        assert measured > 4 * 2**20 * 8 / 200e6 / 2  # a bucket that is full at first is sent at once
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_links
def test_a_name_that_one_machine_does_not_know(machines):
    first, second = check(machines, [config(0, [HOSTS[0], "worker-b.invalid:23450"]), config(1)])
    assert "worker 1's host 'worker-b.invalid' is not known" in faults(first)["names"]
    assert (
        "worker 0 has another list of addresses" in faults(second).get("lists", "")
        or "not reached" in faults(second)["reach"]
    )


@pytest.mark.slow
@needs_links
def test_a_port_that_is_taken(machines):
    listen = 'import socket, time; s = socket.create_server(("", 23450)); time.sleep(30)'
    taken = f"{sys.executable} -c '{listen}' > /dev/null 2>&1 &"
    first, _ = check(machines, before=(f"{taken} sleep 1", ""))
    assert "23450 of this machine cannot be used (Address already in use)" in faults(first)["port"]


@pytest.mark.slow
@needs_links
def test_a_port_whose_answers_are_dropped_is_closed_in_one_direction(machines):
    drop = "ip rule add pref 10 ipproto tcp sport 23450 blackhole"
    first, second = check(machines, before=("", drop))
    assert "worker 1 at 10.77.0.2:23450 is not reached: there is no answer" in faults(first)["reach"]
    assert "worker 0 does not reach this machine at 10.77.0.2:23450" in faults(second)["reach"]


@pytest.mark.slow
@needs_links
def test_a_cable_that_is_not_plugged_in(machines):
    first, second = check(machines, before=("", "ip link set eth0 down"))
    assert "worker 1 at 10.77.0.2:23450 is not reached" in faults(first)["reach"]
    assert "worker 0 at 10.77.0.1:23450 is not reached" in faults(second)["reach"]


@pytest.mark.slow
@needs_links
def test_a_machine_on_which_nothing_runs(machines):
    (first,) = check(machines, only=(0,))
    assert "nothing listens there" in faults(first)["reach"]


@pytest.mark.slow
@needs_links
def test_lists_in_another_order(machines):
    first, second = check(machines, [config(0), config(0, HOSTS[::-1])])
    assert "says that it is worker 0, and this machine's list has worker 1" in faults(first)["lists"]
    assert "says that it is worker 0, and this machine's list has worker 1" in faults(second)["lists"]


@pytest.mark.slow
@needs_links
def test_both_say_that_they_are_worker_0(machines):
    first, _ = check(machines, [config(0), config(0)])
    assert "10.77.0.2:23450 says that it is worker 0" in faults(first)["lists"]


@pytest.mark.slow
@needs_links
def test_versions_and_clocks_that_differ(machines, tmp_path):
    (tmp_path / "keras-9.9.dist-info").mkdir()
    (tmp_path / "keras-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 9.9\n")
    (tmp_path / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 90\n")
    for place, findings in enumerate(check(machines, environment=({}, {"PYTHONPATH": str(tmp_path)}))):
        assert "keras is " in faults(findings)["versions"] and "9.9" in faults(findings)["versions"]
        assert f"worker {1 - place}'s clock differs by {'+-'[place]}90." in faults(findings)["clock"].replace(
            "89.", "90."
        )


@pytest.mark.slow
@needs_links
def test_a_folder_that_is_each_machines_own(machines, tmp_path):
    own = f"mount -t tmpfs none {tmp_path}"
    for findings in check(machines, before=("", own), folder=tmp_path):
        assert "is not shared: what worker" in faults(findings)["folder"]


@pytest.mark.slow
@needs_links
def test_a_folder_that_one_machine_cannot_write(machines, tmp_path):
    first, second = check(machines, before=("", f"mount -t tmpfs -o ro none {tmp_path}"), folder=tmp_path)
    assert faults(second) == {"folder": f" {tmp_path} cannot be written on this machine (Read-only file system)."}
    assert list(faults(first)) == ["folder"]


@pytest.mark.slow
@needs_links
def test_a_web_proxy_that_tensorflow_asks_and_the_ports_do_not(machines):
    proxy = {"http_proxy": "http://10.77.0.9:3128", "no_proxy": "", "no_grpc_proxy": ""}
    findings = check(machines, environment=(proxy, proxy), seconds=15)
    assert any("http_proxy is set" in faults(found).get("all-reduce", "") for found in findings)


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"[]\n", b"{}\n", b""])
def test_another_program_at_the_other_machines_port(answer, capsys):
    with socket.create_server(("localhost", 0)) as other, socket.create_server(("localhost", 0)) as free:
        ports = [server.getsockname()[1] for server in (free, other)]
        free.close()

        def answers():
            with suppress(OSError):
                while True:
                    caller, _ = other.accept()
                    with caller:
                        caller.recv(4096)
                        caller.sendall(answer)

        threading.Thread(target=answers, daemon=True).start()
        words = ["--config", config(0, [f"localhost:{port}" for port in ports]), "--seconds", "1"]
        assert main(["cluster", "check", *words]) == 1
        other.shutdown(socket.SHUT_RDWR)
    said = capsys.readouterr()
    assert "worker 1 at" in said.out and "another program answers there" in said.out and said.err == ""


def test_two_ends_hear_of_each_other():
    """On loopback, one of them five seconds ahead."""

    async def meet():
        ends = []
        for me, other, ahead in (("worker 0", "worker 1", 0), ("worker 1", "worker 0", 5)):
            hello = {"name": me}
            ends.append(Exchange(lambda hello=hello, ahead=ahead: hello | {"time": time.time() + ahead}, {other: ""}))
        servers = [await end.serve(0) for end in ends]
        for end, server in zip(ends, reversed(servers)):
            host, port = server.sockets[0].getsockname()[:2]
            end.addresses = dict.fromkeys(end.addresses, f"[{host}]:{port}")
        await asyncio.gather(*(end.ask_all(60) for end in ends))
        ends[0].fine.set_result(True)
        ends[1].fine.set_result(False)
        for end in ends:
            await end.wait(lambda peer: peer.heard and peer.ready is not None, 60)
        found = [next(iter(end.peers.values())) for end in ends]
        await asyncio.gather(*(end.end(1) for end in ends))
        for server in servers:
            server.close()
        return found

    seen_by_0, seen_by_1 = asyncio.run(meet())
    assert (seen_by_0.hello["name"], seen_by_1.hello["name"]) == ("worker 1", "worker 0")
    assert seen_by_0.offset == pytest.approx(5, abs=1) and seen_by_1.offset == pytest.approx(0, abs=1)
    assert (seen_by_0.heard, seen_by_1.heard) == (True, True)
    assert (seen_by_0.ready, seen_by_1.ready) == (False, True)
    assert min(seen_by_0.rate, seen_by_1.rate) > 1e6  # loopback, in bytes per second


def test_an_end_that_stops_before_its_verdict_says_that_it_was_not_fine():
    async def ask():
        exchange = Exchange(lambda: {"name": "worker 0"}, {"worker 1": "localhost:1"})
        server = await exchange.serve(0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b'{"name": "worker 1"}\n{"probe": 0}\n')
            await reader.readline()  # its own hello
            await asyncio.gather(exchange.end(60), said := asyncio.create_task(reader.readline()))
            writer.close()
        return json.loads(said.result())

    assert asyncio.run(ask()) == {"fine": False}


@pytest.mark.parametrize("question", [b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"name": []}\n', b"{}\n"])
def test_another_programs_question_disturbs_nothing(question, capfd):
    async def ask():
        exchange = Exchange(lambda: {"name": "worker 0"}, {"worker 1": "localhost:1"})
        server = await exchange.serve(0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(question)
            writer.write_eof()
            await reader.read()
            writer.close()
            await exchange.end(1)
        return exchange.peers["worker 1"].heard

    assert asyncio.run(ask()) is False
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no TF_CONFIG"),
        (["--config", "nowhere.json"], "neither JSON nor a file"),
        (["--config", "{}"], "not a JSON object with cluster and task"),
        (["--config", config(0), "--folder", "/no/such/folder"], "is no folder on this machine"),
        (["--config", config(5)], "worker 5"),
    ],
)
def test_a_mistake_is_one_line(words, line, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["cluster", "check", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("course cluster: ") and line in said and "\n" not in said
