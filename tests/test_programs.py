"""The programs to take away, each run from an empty folder without the course, against Keras' own fit on one device."""

import ast
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import two_node_slurm
from installed import need
from network_links import needs_links

from course_lib import programs
from course_lib.cluster.job import Link
from course_lib.cluster.limited_links import NetworkLab

sklearn_datasets, keras = need("sklearn.datasets"), need("keras")
each_program = pytest.mark.parametrize("name", programs.NAMES)
ROWS = 8 * 64
OURS = ("TF_CONFIG", "KERAS_BACKEND", "PYTHONUNBUFFERED")  # the last hides lines that a program never wrote out
# Blocks the course, and runs the file that stands in the folder.
ROWS_OF_TWO = """
import argparse, random
import keras, numpy as np, tensorflow as tf
arguments = argparse.Namespace(data="data.npz", batch=32)
{seeding}
{function}
graph = tf.function(lambda: rows_of_a_worker()._variant_tensor).get_concrete_function()
spec = rows_of_a_worker().element_spec
made = [tf.data.experimental.from_variant(graph(), spec) for _ in range(2)]
one, other = (next(iter(rows))[1].numpy().tolist() for rows in made)
print(one == other)
"""
PLAIN = "import runpy, sys; sys.modules['course_lib'] = None; runpy.run_path('train.py', run_name='__main__')"
# The same rows and first weights, with whatever Keras' fit does on one device. Arguments: kind, output, epochs, policy.
REFERENCE = """
import sys
import keras, numpy as np
kind, out, epochs, policy = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with np.load("data.npz") as data:
    x, y = data["x"], data["y"]
keras.config.set_dtype_policy(policy)
keras.utils.set_random_seed(0)
layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
if kind == "cut":
    layers.append(keras.layers.Dense(16))
model = keras.Sequential([*layers, keras.layers.Dense(10, dtype="float32")])
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for epoch in range(epochs):
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    model.fit(x[order], y[order], batch_size=len(x) if kind == "whole" else 64, shuffle=False, verbose=0)
model.save(out)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    x, y = sklearn_datasets.load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=(x / 16).astype("float32").reshape(-1, 8, 8, 1)[:ROWS], y=y[:ROWS])
    return path


class Place:
    """An empty folder with the data and one program in it, and the processes that were started there."""

    def __init__(self, folder: Path, data: Path, name: str):
        self.folder, self.processes = folder, []
        folder.mkdir(exist_ok=True)
        (folder / "data.npz").write_bytes(data.read_bytes())
        (folder / "train.py").write_text(programs.text(name), encoding="utf-8")

    def start(self, *arguments: object, prefix=(), **environment: str) -> subprocess.Popen:
        words = [*prefix, sys.executable, "-c", PLAIN, "--data", "data.npz", "--folder", "run", *map(str, arguments)]
        kept = {key: value for key, value in os.environ.items() if key not in OURS}
        with open(self.folder / f"log-{len(self.processes)}", "w") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=kept | environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def said(self, number: int) -> str:
        return (self.folder / f"log-{number}").read_text()

    def wait(self) -> None:
        for number, process in enumerate(self.processes):
            assert process.wait(timeout=240) == 0, self.said(number)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def place(tmp_path, data):
    places = []

    def make(name: str, folder: str = "") -> Place:
        places.append(Place(tmp_path / (folder or name), data, name))
        return places[-1]

    yield make
    for one in places:
        one.end()


def free_ports(number: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("localhost", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


def tf_config(addresses: dict[str, list[str]], kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": kind, "index": index}})}


def two_workers(place: Place, *arguments: object, prefixes=((), ()), hosts=("localhost",) * 2) -> None:
    addresses = {"worker": [f"{host}:{port}" for host, port in zip(hosts, free_ports(2))]}
    for index in range(2):
        place.start(*arguments, prefix=prefixes[index], **tf_config(addresses, "worker", index))


def served(place: Place, *arguments: object, workers: int = 1, prefixes=((), ()), hosts=("localhost",) * 2) -> None:
    """The chief with a worker on one host, the server with the other workers on the other; the chief first in order."""
    ports = [*map(str, free_ports(2 + workers))]
    addresses = {"chief": [f"{hosts[0]}:{ports[0]}"], "ps": [f"{hosts[1]}:{ports[1]}"]}
    addresses["worker"] = [f"{hosts[index % 2]}:{port}" for index, port in enumerate(ports[2:])]
    for kind, index, host in [("chief", 0, 0), ("ps", 0, 1), *(("worker", at, at % 2) for at in range(workers))]:
        place.start(*arguments, prefix=prefixes[host], **tf_config(addresses, kind, index))


def chief_ends(place: Place) -> None:
    """And the others go on serving, but for those that a test killed."""
    chief, *others = place.processes
    assert chief.wait(timeout=240) == 0, place.said(0)
    assert {other.poll() for other in others} <= {None, -9}, [place.said(at) for at in range(1, len(place.processes))]


def steps_reported(place: Place, number: int) -> int:
    """Lines of a log that report a loss: one an epoch."""
    return len(re.findall(r"(?m)^.*\bloss\b:? \d", place.said(number)))


def weights(file: Path) -> list[np.ndarray]:
    return keras.saving.load_model(file, compile=False).get_weights()


@functools.cache
def fit_on_one_device(data: bytes, kind: str, epochs: int, policy: str) -> list[np.ndarray]:
    """In a process of its own, with JAX where the program has it."""
    environment = {**os.environ, "KERAS_BACKEND": "jax" if kind in ("jax", "cut") else "tensorflow"}
    with tempfile.TemporaryDirectory() as name:
        Path(name, "data.npz").write_bytes(data)
        command = [sys.executable, "-c", REFERENCE, kind, "reference.keras", str(epochs), policy]
        subprocess.run(command, cwd=name, env=environment, check=True, capture_output=True)
        return weights(Path(name, "reference.keras"))


def assert_equals_fit(place: Place, kind: str, epochs: int = 2, policy: str = "float32", relative: float = 1e-5):
    """float32 sums in another order; half precision rounds to 8 or 11 bits, on both sides."""
    wanted = fit_on_one_device((place.folder / "data.npz").read_bytes(), kind, epochs, policy)
    found = [array for file in sorted((place.folder / "run").glob("*.keras")) for array in weights(file)]
    assert [one.shape for one in found] == [one.shape for one in wanted]
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=0, atol=relative * np.abs(other).max())


CASES = [  # program, arguments, kind of reference; policy and tolerance where they are others
    ("accumulation", ("--cpus", 2, "--micro-batches", 4), "plain"),
    ("mixed-precision", ("--cpus", 2, "--policy", "mixed_float16"), "plain", "mixed_float16", 2e-2),
    ("tpu-strategy", ("--cpus", 2), "plain"),
    ("jax-data-parallel", ("--cpus", 1), "jax"),
    ("jax-data-parallel", ("--cpus", 8), "jax"),
    ("layout-map", ("--cpus", 8, "--model-axis", 4), "cut"),
    ("layout-map", ("--cpus", 8, "--model-axis", 2, "--fsdp"), "cut"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, (case[0], *case[1]))))
def test_on_one_machine_it_equals_fit_on_one_device(place, case):
    name, arguments, kind, *others = case
    here = place(name)
    here.start(*arguments)
    here.wait()
    assert_equals_fit(here, kind, 2, *others)


@pytest.mark.slow
def test_two_processes_on_jax_equal_fit_on_one_device(place):
    here = place("jax-data-parallel")
    (port,) = free_ports(1)
    for process in range(2):
        here.start("--cpus", 2, "--coordinator", f"localhost:{port}", "--processes", 2, "--process", process)
    here.wait()
    assert_equals_fit(here, "jax")


@pytest.mark.slow
def test_two_stages_equal_fit_on_one_device(place):
    here = place("pipeline")
    (port,) = free_ports(1)
    for stage in range(2):
        here.start("--stage", stage, "--address", f"localhost:{port}")
    here.wait()
    assert_equals_fit(here, "plain")


@pytest.mark.slow
def test_stages_go_on_together_though_one_has_saved_once_more(place):
    here = place("pipeline")
    last_stage, kept = here.folder / "run" / "checkpoint-1", here.folder / "kept"
    for epochs in (1, 2, 3):
        (port,) = free_ports(1)
        for stage in range(2):
            here.start("--stage", stage, "--address", f"localhost:{port}", "--epochs", epochs)
        here.wait()
        if epochs == 1:
            shutil.copytree(last_stage, kept)
        if epochs == 2:  # as if stage 1 had been killed before it saved
            shutil.rmtree(last_stage)
            kept.rename(last_stage)
    assert [steps_reported(here, number) for number in (1, 3, 5)] == [1, 1, 2]
    assert_equals_fit(here, "plain", epochs=3)


@pytest.mark.slow
@needs_links
@pytest.mark.parametrize("name", ["multi-worker-loop", "multi-worker-fit", "parameter-server"])
def test_on_two_machines_it_equals_fit_on_one_device(place, name):
    """Two network namespaces, each with an address of its own; they share the disk."""
    here, lab = place(name), NetworkLab(2, Link(10_000))
    lab.open()
    machines = dict(prefixes=[lab.command_prefix(position) for position in range(2)], hosts=lab.hosts)
    try:
        if name == "parameter-server":
            served(here, "--steps", 6, "--batch", ROWS, "--save-steps", 3, **machines)
            chief_ends(here)
            assert_equals_fit(here, "whole", epochs=6)
        else:
            two_workers(here, **machines)
            here.wait()
            assert_equals_fit(here, "plain")
    finally:
        here.end()
        lab.close()


HEAD = "$(scontrol show hostnames $SLURM_JOB_NODELIST | {} -n 1):12345"
SLURM = {  # as the programs' own heads say, but for the line breaks
    "multi-worker-loop": "",
    "multi-worker-fit": "",
    "jax-data-parallel": f"--cpus 2 --coordinator {HEAD.format('head')}"
    " --processes $SLURM_NTASKS --process $SLURM_PROCID",
    "pipeline": f"--stage $SLURM_PROCID --address {HEAD.format('tail')}",
}


@pytest.fixture(scope="module")
def slurm():
    """A real Slurm of two nodes, whose names this machine knows."""
    if why := two_node_slurm.missing():
        pytest.fail(f"a real Slurm is needed: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        hosts = Path(name, "hosts")
        hosts.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1 n2\n")
        ours = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        with two_node_slurm.two_nodes(Path(name), within=lambda words: ["unshare", "-m", "sh", "-c", ours, "", *words]):
            yield


@pytest.mark.slow
@pytest.mark.parametrize("name", SLURM)
def test_under_slurm_it_equals_fit_on_one_device(slurm, place, name):
    here = place(name)
    command = f'{sys.executable} -c "{PLAIN}" --data data.npz --folder run {SLURM[name]}'
    here.start(prefix=["srun", "--nodes=2", "--ntasks-per-node=1", "--chdir", here.folder, "bash", "-c", command])
    here.wait()
    assert_equals_fit(here, "jax" if name.startswith("jax") else "plain")


IN_PARTS = [  # fields as in CASES
    ("mirrored-fit", ("--cpus", 2), "plain"),
    ("mirrored-loop", ("--cpus", 2, "--save-steps", 4), "plain"),
    ("accumulation", ("--cpus", 2, "--save-steps", 4), "plain"),
    ("mixed-precision", ("--cpus", 2, "--save-steps", 4), "plain", "mixed_bfloat16", 2e-2),
    ("jax-data-parallel", ("--cpus", 2), "jax"),
    ("layout-map", ("--cpus", 2), "cut"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_PARTS, ids=lambda case: case[0])
def test_what_ended_after_an_epoch_goes_on_as_if_it_had_not(place, case):
    name, arguments, kind, *others = case
    whole, parts = place(name), place(name, "in parts")
    for here, runs in ((whole, [2]), (parts, [1, 2])):
        for epochs in runs:
            here.start(*arguments, "--epochs", epochs)
            here.wait()
    assert [steps_reported(parts, number) for number in range(2)] == [1, 1]
    one, other = (weights(here.folder / "run" / "model.keras") for here in (whole, parts))
    for array, same in zip(one, other, strict=True):
        np.testing.assert_allclose(array, same, rtol=0, atol=1e-6)
    assert_equals_fit(whole, kind, 2, *others)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_others_and_all_go_on(place):
    here = place("multi-worker-loop")
    two_workers(here, "--epochs", 400, "--save-steps", 8)
    newest = here.folder / "run" / "checkpoint" / "checkpoint"
    while not newest.exists():
        assert all(process.poll() is None for process in here.processes), here.said(0)
        time.sleep(0.05)
    survivor, victim = here.processes
    victim.kill()
    assert survivor.wait(timeout=240) != 0 and victim.wait() == -9
    here.processes.clear()
    step = 8 * int(newest.read_text().split('"')[1].removeprefix("ckpt-"))
    epochs = step // 8 + 2  # eight steps an epoch, and a checkpoint after each
    two_workers(here, "--epochs", epochs, "--save-steps", 8)
    here.wait()
    assert f"epoch {epochs}: " in here.said(0) and "epoch 1: " not in here.said(0)
    assert_equals_fit(here, "plain", epochs=epochs, relative=1e-4)  # more steps than elsewhere


@pytest.mark.slow
def test_a_parameter_servers_run_outlives_a_worker_and_goes_on_after_its_end(place):
    here = place("parameter-server")
    served(here, "--steps", 400, "--save-steps", 20, workers=2)
    newest = here.folder / "run" / "checkpoint" / "checkpoint"
    while not newest.exists():
        assert all(process.poll() is None for process in here.processes), here.said(0)
        time.sleep(0.05)
    here.processes[-1].kill()
    chief_ends(here)
    updates = [int(number) for number in re.findall(r"update (\d+): ", here.said(0))]
    losses = [float(loss) for loss in re.findall(r"mean loss ([\d.]+)", here.said(0))]
    assert updates == [*range(20, 401, 20)] and losses[-1] < losses[0] / 2
    here.end()
    here.processes.clear()
    served(here, "--steps", 440, "--save-steps", 20, workers=2)
    chief_ends(here)
    first, last = map(int, re.findall(r"update (\d+): ", here.said(0)))
    assert last == first + 20 and 420 <= first <= 421  # the lost worker's last step may have counted twice


@pytest.mark.slow
def test_workers_of_a_parameter_server_take_rows_in_orders_of_their_own(place):
    """The program's own lines, traced once and run twice, as a coordinator does it for two workers."""
    here, text = place("parameter-server"), programs.text("parameter-server")
    seeding = re.search(r"^.*seed\(0\).*$", text, re.MULTILINE)[0]
    function = re.search(r"^def rows_of_a_worker.*?(?=^\S)", text.partition(seeding)[2], re.MULTILINE | re.DOTALL)[0]
    code = ROWS_OF_TWO.format(seeding=seeding, function=function)
    done = subprocess.run([sys.executable, "-c", code], cwd=here.folder, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
def test_an_overflow_on_one_replica_skips_the_step_on_all(place):
    """As Keras' own scale does on one device; one row of the second replica is too large for scaled float16."""
    here = place("mixed-precision")
    with np.load(here.folder / "data.npz") as data:
        x, y = data["x"], data["y"]
    x[np.random.default_rng([0, 0]).permutation(len(x))[40]] *= 2000
    np.savez(here.folder / "data.npz", x=x, y=y)
    here.start("--cpus", 2, "--policy", "mixed_float16", "--epochs", 1)
    here.wait()
    assert_equals_fit(here, "plain", 1, "mixed_float16", 2e-2)


@pytest.mark.slow
def test_workers_that_do_not_share_the_folder_are_refused(place):
    """Worker 1 sees another disk: nothing is saved where it looks."""
    name = "multi-worker-loop"
    here, elsewhere = place(name), place(name, "another disk")
    two_workers(here, "--epochs", 1, "--save-steps", 4)
    here.wait()
    addresses = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    for index, one in enumerate((here, elsewhere)):
        one.start("--epochs", 2, **tf_config(addresses, "worker", index))
    for one in (here, elsewhere):
        assert one.processes[-1].wait(timeout=240) == 1
        assert "they do not share run" in one.said(len(one.processes) - 1)


@each_program
def test_it_imports_frameworks_and_the_standard_library_alone(name):
    nodes = [*ast.walk(ast.parse(programs.text(name)))]
    tops = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    tops |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert tops <= sys.stdlib_module_names | {"tensorflow", "keras", "jax", "numpy"}


@each_program
def test_it_says_how_it_is_started_and_fits_on_two_screens(name):
    text = programs.text(name)
    head = ast.get_docstring(ast.parse(text))
    for where in ("By hand:", "Slurm:", "Kubernetes:", "Colab:"):
        assert f"\n{where}" in head
    body = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
    assert 30 <= len(body) <= 80


@pytest.mark.slow
@each_program
def test_a_folder_that_cannot_be_made_ends_it_before_it_trains(place, name):
    """The folder is made first: a run without a checkpoint would else lose its model at the end."""
    here = place(name)
    (here.folder / "run").write_text("a file")
    needed = ("--stage", 0, "--address", "localhost:1") if name == "pipeline" else ()
    assert here.start(*needed).wait(timeout=240) == 1
    assert "FileExistsError" in here.said(0) and "replicas" not in here.said(0)


@each_program
def test_the_command_prints_it(name):
    done = subprocess.run([sys.executable, "-m", "course_lib.cli", "program", name], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == programs.text(name)


def test_the_command_lists_them_and_each_file_is_listed():
    done = subprocess.run([sys.executable, "-m", "course_lib.cli", "program"], capture_output=True, text=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*programs.NAMES]
    files = {path.stem.replace("_", "-") for path in programs.FOLDER.glob("[!_]*.py")}
    assert files == set(programs.NAMES)


@pytest.mark.parametrize(
    "name, arguments, said",
    [
        ("accumulation", ("--cpus", 2, "--global-batch", 20), "multiple of the replicas times --micro-batches"),
        ("layout-map", ("--cpus", 4, "--model-axis", 3), "--model-axis must divide the devices"),
        ("pipeline", ("--stage", 0, "--address", "localhost:1", "--micro-batches", 5), "multiple of --micro-batches"),
    ],
)
def test_what_does_not_divide_is_said_in_one_line(place, name, arguments, said):
    here = place(name)
    assert here.start(*arguments).wait(timeout=240) == 1
    assert said in here.said(0) and "Traceback" not in here.said(0)
