"""pyproject.toml, the locks, the Makefile, environment.yml and the development container say the same thing."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from installed import need
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from course_lib import bootstrap

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("requirements.lock", "requirements-colab.lock", "requirements-colab-tpu.lock")

# Where the newest stack must install. Colab's own two are the third and fourth, on one Python.
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix", "platform_system": "Linux"}
LINUX_ARM = {**LINUX, "platform_machine": "aarch64"}
MAC = {"sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix", "platform_system": "Darwin"}
MACHINES = {"linux": LINUX, "linux-arm": LINUX_ARM, "mac": MAC}


def environment(machine: dict, python: str) -> dict:
    return {**machine, "python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}


def locked(lock: str, target: dict) -> dict[str, Version]:
    """Package to version, of the lines whose marker holds there."""
    versions: dict[str, Version] = {}
    for line in (ROOT / lock).read_text().splitlines():
        pinned, _, marker = line.partition(" ; ")
        name, version = pinned.split("==")
        if not marker or Marker(marker).evaluate(target):
            assert canonicalize_name(name) not in versions, f"{lock} gives {name} two versions for {target}"
            versions[canonicalize_name(name)] = Version(version)
    return versions


def requirements(extras: list[str], target: dict) -> list[Requirement]:
    """What the extras ask for on a machine, through the package's references to its own extras."""
    asked, seen, waiting = [], set(), list(extras)
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if requirement.marker and not requirement.marker.evaluate({**target, "extra": extra}):
                continue
            if canonicalize_name(requirement.name) == canonicalize_name(PROJECT["name"]):
                waiting += requirement.extras
            else:
                asked.append(requirement)
    return asked


def makefile_list(variable: str) -> list[str]:
    return re.search(rf"^{variable} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


def conda() -> tuple[list[str], list[str]]:
    """environment.yml's conda requirements, and the lines of its pip part."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip_part,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return [entry for entry in dependencies if isinstance(entry, str)], pip_part


def conda_extras() -> list[str]:
    (itself,) = [line for line in conda()[1] if line.startswith("-e ")]
    return re.fullmatch(r"-e \.\[([\w,]+)\]", itself)[1].split(",")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_names_versions_and_markers_alone(lock):
    for line in (ROOT / lock).read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.!]+( ; [\w\s.'<>=!()-]+)?", line), line


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", bootstrap.SUPPORTED)
def test_the_lock_covers_what_its_extras_ask_for(machine, python):
    target = environment(MACHINES[machine], python)
    versions = locked("requirements.lock", target)
    for requirement in requirements(makefile_list("EXTRAS"), target):
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{requirement} is in no line of the lock: run make lock"
        assert requirement.specifier.contains(versions[name]), f"{requirement}, and the lock has {versions[name]}"


@pytest.mark.parametrize(
    "lock, variable", [("requirements-colab.lock", "COLAB_EXTRAS"), ("requirements-colab-tpu.lock", "COLAB_TPU_EXTRAS")]
)
def test_the_colab_locks_cover_what_their_extras_ask_for(lock, variable):
    versions = locked(lock, environment(LINUX, "3.13"))
    for requirement in requirements(makefile_list(variable), environment(LINUX, "3.13")):
        name = canonicalize_name(requirement.name)
        if lock == "requirements-colab.lock":
            assert name not in ("tensorflow-cpu", "libtpu") or name not in versions
            name = {"tensorflow-cpu": "tensorflow", "libtpu": "jax"}.get(name, name)  # Colab's own builds
        assert name in versions and requirement.specifier.contains(versions[name]), requirement


def test_the_colab_locks_are_the_stacks_they_claim_to_be():
    colab = locked("requirements-colab.lock", environment(LINUX, "3.13"))
    tpu = locked("requirements-colab-tpu.lock", environment(LINUX, "3.13"))
    stack = {"tensorflow": "2.20.0", "keras": "3.13.2", "tf-keras": "2.20.1", "jax": "0.7.2", "numpy": "2.1.3"}
    stack |= {"ipywidgets": "7.7.1", "ipython": "7.34.0"}
    assert {name: str(colab[name]) for name in stack} == stack
    assert {name: str(tpu[name]) for name in ("keras", "jax", "libtpu")} == {
        "keras": "3.13.2",
        "jax": "0.7.2",
        "libtpu": "0.0.21.1",
    }
    assert not {name for name in tpu if name.startswith("tensorflow")} - {"tensorflow-datasets", "tensorflow-metadata"}


def test_the_base_install_asks_for_nothing():
    """So that installing the course in Colab replaces nothing that Colab has."""
    assert PROJECT["dependencies"] == []


def test_every_extra_refers_to_extras_that_exist():
    for extra, lines in PROJECT["optional-dependencies"].items():
        for requirement in map(Requirement, lines):
            if canonicalize_name(requirement.name) == canonicalize_name(PROJECT["name"]):
                assert requirement.extras <= PROJECT["optional-dependencies"].keys(), extra


def test_conda_installs_the_extras_that_the_lock_was_made_from():
    """All but legacy: pip has no setting by which tensorflow-cpu satisfies tf_keras, as the lock's override does."""
    assert set(conda_extras()) == set(makefile_list("EXTRAS")) - {"legacy"}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", bootstrap.SUPPORTED)
def test_condas_pip_part_resolves_to_the_locks_versions(machine, python):
    target = environment(MACHINES[machine], python)
    assert [line for line in conda()[1] if not line.startswith("-e ")] == ["-c requirements.lock"]
    versions = locked("requirements.lock", target)
    for requirement in requirements(conda_extras(), target):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_every_environment_has_a_python_that_the_lock_supports():
    """conda's, as repo2docker reads it too (a range would mean its default, 3.10), and the container's."""
    (python,) = [entry for entry in conda()[0] if entry.startswith("python")]
    minor = re.fullmatch(r"python =(3\.\d+)", python)[1]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert minor in bootstrap.SUPPORTED and container["image"].rpartition(":")[2].startswith(f"{minor}-")
    declared = SpecifierSet(PROJECT["requires-python"])
    assert all(declared.contains(version) for version in bootstrap.SUPPORTED)
    assert not declared.contains("3.10.14")


def test_nothing_else_lists_packages():
    """conda's file and the container's lead to the extras and the lock; repo2docker would prefer files of its own."""
    assert [entry.split()[0] for entry in conda()[0]] == ["python", "pip"]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make setup" and "features" not in container
    rivals = ("binder", ".binder", "requirements.txt", "setup.py", "Pipfile", "runtime.txt", "Dockerfile", "apt.txt")
    assert not [name for name in rivals if (ROOT / name).exists()]


in_an_environment_of_ours = pytest.mark.skipif(
    not (Path(sys.prefix) / ".set-up").exists(), reason="this environment was made by hand, not by make test"
)


@in_an_environment_of_ours
def test_the_environment_under_test_is_a_lock():
    """What `make test` runs on has a lock's versions, none newer and none missing."""
    installed = {canonicalize_name(one.name): Version(one.version) for one in importlib.metadata.distributions()}
    target = {name: str(value) for name, value in default_environment().items()}
    assert [lock for lock in LOCKS if locked(lock, target).items() <= installed.items()]


def test_what_is_not_installed_is_skipped_and_what_is_broken_fails(tmp_path, monkeypatch):
    """importorskip would skip both: TensorFlow without one of its dependencies cannot be imported either."""
    (tmp_path / "broken.py").write_text("import one_of_its_dependencies")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        need("broken")
    with pytest.raises(pytest.skip.Exception, match="^not_there.at_all is not installed"):
        need("not_there.at_all")
    by_import = "pytest.importor" + "skip"
    assert not [file.name for file in ROOT.glob("tests/*.py") if by_import in file.read_text()]


@in_an_environment_of_ours
@pytest.mark.parametrize("lock", LOCKS)
def test_the_base_install_resolves_to_nothing_under_a_lock(lock):
    uv = [Path(sys.prefix) / "bin" / "uv", "pip", "compile", "--quiet", "--offline", "--no-header"]
    command = [*uv, "pyproject.toml", "--constraint", lock]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == ""


def test_packages_are_compiled_once_at_the_set_up():
    """With PYTHONDONTWRITEBYTECODE each of a cluster's processes compiled all of TensorFlow: 10 s instead of 4."""
    source = importlib.util.find_spec("keras").origin
    assert Path(importlib.util.cache_from_source(source)).exists()


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="without TensorFlow nothing is left out")
def test_a_tests_process_imports_frameworks_without_what_they_would_take_in_passing():
    found = "print(sorted({'sklearn', 'matplotlib', 'jax', 'rfc3987_syntax'} & set(sys.modules)))"
    by_itself = "import jax, matplotlib.pyplot, sklearn.base, rfc3987_syntax"
    source = f"import sys, tensorflow, keras, nbformat; {found}; {by_itself}; {found}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "[]\n['jax', 'matplotlib', 'rfc3987_syntax', 'sklearn']\n", done.stdout + done.stderr


@pytest.mark.skipif(Version(pytest.__version__) < Version("9"), reason="pytest 8 shows where a test hangs, and goes on")
def test_a_test_that_hangs_ends_the_run_and_is_named(tmp_path):
    """With the project's own settings but for the seconds; one restart would run what hangs once more."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\naddopts = {settings['addopts'].replace('tests/', f'{ROOT}/tests/')}\n"
        f"faulthandler_exit_on_timeout = {settings['faulthandler_exit_on_timeout']}\nfaulthandler_timeout = 1\n"
    )
    (tmp_path / "test_three.py").write_text(
        "import threading\n\ndef test_first(): pass\n\n"
        "def test_hangs(): threading.Event().wait()\n\ndef test_last(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-n1", "--dist", "loadfile", "test_three.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "crashed while running 'test_three.py::test_hangs'" in done.stdout and "1 failed, 1 passed" in done.stdout
    assert 'test_three.py", line 5 in test_hangs' in done.stderr
