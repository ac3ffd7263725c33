"""Set-up: make an environment, install a lock into it exactly, register its kernel.

Run as a script, before anything is installed, so it needs the standard library
alone; and it keeps to what Python 3.6 understands, so that an old Python gets
a clear line instead of a syntax error. `make lab` and `make test` start here.
A second run finds the stamp that the first one left, and ends at once.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.13", "3.12", "3.11")  # the Pythons for which TensorFlow publishes builds
NEEDED_BYTES = 4 * 2**30  # the newest stack takes 3.7 GiB, measured
SPARE_BYTES = 2**29  # what a repair may need beside what is there

# What TensorFlow, JAX and gRPC print in C++ as they start never passes Python, so
# only the kernel's own environment keeps it out of a notebook. Nothing here picks
# a device: a kernel spec outlives the machine's hardware.
KERNEL_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}

MILESTONE = re.compile(r"\s*(Downloading .*\(\d{2,}\.\d+MiB\)|Prepared \d|Installed \d)")  # uv's lines worth showing

CAUSES = (  # in the output of pip or uv: what it means, and the remedy
    (r"No space left|os error 28|Errno 28", "the disk is full: free some space"),
    (r"Permission denied|Read-only file system", "a folder cannot be written: see which in the log, and make it yours"),
    (
        r"from versions: none|Failed to fetch|[Cc]onnect(ion)? |timed out|resolve host|dns error|tls|[Cc]ertificate",
        "the package index cannot be reached: connect to the network, or name your mirror in PIP_INDEX_URL",
    ),
)


class SetUpError(Exception):
    """What went wrong and the remedy, in one line."""


def main(arguments=None) -> int:
    """Set up one environment; return the exit code."""
    options = _options(arguments)
    try:
        python = find_python(options.python)
        if python != sys.executable:
            os.execv(python, [python, str(Path(__file__).resolve())] + sys.argv[1:])
        set_up(ROOT / options.venv, ROOT / options.lock, options.python)
    except (SetUpError, OSError) as error:  # an OSError's own line names the file, as when the disk fills up
        print("set-up: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: stopped; the same command takes it up again", file=sys.stderr)
        return 130
    return 0


def find_python(wanted=None) -> str:
    """The Python to build on: this one where it fits, else another on this machine.

    wanted  "3.13", or None for any that the locks support
    Raises  SetUpError when there is none that can make an environment
    """
    versions = [wanted] if wanted else SUPPORTED
    here = "%d.%d" % sys.version_info[:2]
    if here in versions and _makes_environments(sys.executable, here):
        return sys.executable
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for version in versions:
        candidates = [Path(folder) / ("python" + version) for folder in folders]
        candidates += sorted(Path.home().glob(".pyenv/versions/%s.*/bin/python3" % version))
        for candidate in candidates:
            if _makes_environments(str(candidate), version):
                return str(candidate)
    if here in versions:
        raise SetUpError(
            "Python %s lacks its venv module; install it (Debian and Ubuntu: sudo apt install python%s-venv) "
            "and run this again" % (here, here)
        )
    raise SetUpError(
        "Python %s is needed, and this is Python %s with no other one found; install one (your system's python%s "
        "and python%s-venv, or pyenv install %s) and run this again"
        % ((wanted or "3.11, 3.12 or 3.13", ".".join(map(str, sys.version_info[:3]))) + (versions[0],) * 3)
    )


def set_up(venv: Path, lock: Path, wanted=None) -> None:
    """Bring an environment to what its lock says; do nothing when it is there already.

    Raises  SetUpError, when a step fails; a later run goes on from there
    """
    stamp = venv / ".set-up"
    if _reads(stamp, _fingerprint(venv, lock)) and _version_of(venv, wanted):
        return
    count = sum(1 for line in lock.read_text().splitlines() if line)
    print("Set-up of %s: %d packages of %s, once. About two minutes." % (venv.name, count, lock.name))
    began = time.time()
    _require_writable(venv)
    require_disk(venv)
    python, uv, log = venv / "bin" / "python", venv / "bin" / "uv", venv / "set-up.log"
    if not (_version_of(venv, wanted) and _runs([python, "-I", "-c", "import pip"])):
        base = getattr(sys, "_base_executable", sys.executable)  # never the environment that is being replaced
        make = [base, "-I", "-m", "venv", "--clear", venv]
        _step("1/5 environment with Python %d.%d.%d" % sys.version_info[:3], make, log)
    quiet_pip = [python, "-I", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2"]
    _step("2/5 uv, the installer", quiet_pip + ["uv"], log)
    index = _index_options(python)
    packages = [uv, "pip", "sync", "--compile-bytecode", "--python", python] + index + [lock]
    _step("3/5 packages", packages, log)
    itself = ["--no-deps", "--editable", ROOT]
    _step("4/5 the course itself", [uv, "pip", "install", "--python", python] + index + itself, log)
    kernel = [python, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"]
    for name, value in KERNEL_ENVIRONMENT.items():
        kernel += ["--env", name, value]
    _step("5/5 notebook kernel", kernel, log)
    stamp.write_text(_fingerprint(venv, lock))
    print("Set-up done in %.0f s." % (time.time() - began))


def require_disk(venv: Path) -> None:
    """Raise SetUpError unless what is still missing from a full environment fits on the disk."""
    there = sum(entry.lstat().st_size for entry in venv.rglob("*") if not entry.is_dir())
    needed, free = max(NEEDED_BYTES - there, SPARE_BYTES), shutil.disk_usage(str(venv)).free
    if free < needed:
        raise SetUpError(
            "%.1f GiB of free disk are needed and %s has %.1f GiB; free some, or move this folder to a larger disk"
            % (needed / 2**30, venv.parent, free / 2**30)
        )


def explain(output: str) -> str:
    """The cause and its remedy, where the output of pip or uv tells; else its last line."""
    for pattern, meaning in CAUSES:
        if re.search(pattern, output):
            return meaning
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _options(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lock", default="requirements.lock", help="the file that names the exact versions")
    parser.add_argument("--venv", default=".venv", help="the environment's folder; its name starts with .venv")
    parser.add_argument(
        "--python", metavar="3.N", help="build on this Python; by default any of " + ", ".join(SUPPORTED)
    )
    options = parser.parse_args(arguments)
    if not re.match(r"\.venv[\w.-]*$", options.venv):
        parser.error("--venv must start with .venv and be no path: the folder is cleared, and git ignores such a name")
    if not (ROOT / options.lock).is_file():
        parser.error("there is no file %s" % (ROOT / options.lock))
    return options


def _makes_environments(python: str, version: str) -> bool:
    """Whether it is this version, truly runs (a shim may not) and has what Debian splits off."""
    check = "import ensurepip, sys, venv; sys.exit('%%d.%%d' %% sys.version_info[:2] != %r)" % version
    return _runs([python, "-I", "-c", check])


def _runs(command) -> bool:
    try:
        return subprocess.call(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def _version_of(venv: Path, wanted) -> str:
    """The Python that an environment was made with; "" for one that does not fit, or was moved since.

    Its scripts hold the folder's path, and so does the record of how it was made.
    """
    try:
        text = (venv / "pyvenv.cfg").read_text()
    except OSError:
        return ""
    match = re.search(r"^version = ((3\.\d+)\..*)$", text, re.MULTILINE)
    fits = match and match.group(2) in ([wanted] if wanted else SUPPORTED)
    works = re.search(" %s$" % re.escape(str(venv)), text, re.MULTILINE) and (venv / "bin" / "python").exists()
    return match.group(1) if fits and works else ""


def _fingerprint(venv: Path, lock: Path) -> str:
    """Changes with all that an environment is made from."""
    parts = [lock.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()]
    parts.append(_version_of(venv, None).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False


def _require_writable(venv: Path) -> None:
    try:
        venv.mkdir(exist_ok=True)
        (venv / "set-up.log").write_text("")
    except OSError as error:
        raise SetUpError(
            "%s cannot be written (%s); copy the course to a folder of your own" % (error.filename, error.strerror)
        )


def _step(title: str, command, log: Path) -> None:
    """Run one command: its milestones to the terminal, all of it to the log. Raises SetUpError when it fails."""
    print("  " + title, flush=True)
    command, said = list(map(str, command)), []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, errors="replace"
    )
    try:
        for line in process.stdout:
            said.append(line)
            if MILESTONE.match(line):
                print("      " + line.strip(), flush=True)
    finally:
        process.wait()
        with log.open("a") as file:
            file.write("$ %s\n%s" % (" ".join(command), "".join(said)))
    if process.returncode:
        raise SetUpError("stopped at %s: %s; all that was said is in %s" % (title, explain("".join(said)), log))


def _index_options(python: Path) -> list:
    """The package index that pip is configured with, for uv, which does not read pip's settings."""
    listing = subprocess.check_output([str(python), "-I", "-m", "pip", "config", "list"], universal_newlines=True)
    match = re.search(r"^\S+\.index-url='(.*)'$", listing, re.MULTILINE)  # pip lists its environment first
    return ["--default-index", match.group(1)] if match else []


if __name__ == "__main__":
    sys.exit(main())
