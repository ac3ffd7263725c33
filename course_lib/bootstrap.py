"""Set-up: make an environment, install a lock into it exactly, register its kernel.

`make lab` and `make test` start here. It runs as a script before anything is installed, so it needs the standard
library alone, and it keeps to the syntax of Python 3.6, so that an old Python prints a clear line instead of a syntax
error. A second run ends at once.
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
SPARE_BYTES = 2**29  # what a repair may need

# TensorFlow, JAX and gRPC print from C++ as they start, so only the kernel's own environment keeps those lines out of
# a notebook. Nothing here picks a device: the kernel's settings outlive the machine's hardware.
KERNEL_ENVIRONMENT = ("TF_CPP_MIN_LOG_LEVEL=3", "GRPC_VERBOSITY=ERROR")

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
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lock", default="requirements.lock", help="the file that names the exact versions")
    parser.add_argument("--venv", default=".venv", help="the environment's folder; its name starts with .venv")
    parser.add_argument("--python", metavar="3.N", help="build on this Python; default: any of " + ", ".join(SUPPORTED))
    options = parser.parse_args(arguments)
    if not re.match(r"\.venv[\w.-]*$", options.venv):
        parser.error("--venv must start with .venv and hold no path: the folder is cleared, and git ignores such names")
    if not (ROOT / options.lock).is_file():
        parser.error("there is no file %s" % (ROOT / options.lock))
    try:
        python = find_python(options.python)
        if python != sys.executable:
            os.execv(python, [python, str(Path(__file__).resolve())] + sys.argv[1:])
        set_up(ROOT / options.venv, ROOT / options.lock, options.python)
    except (SetUpError, OSError) as error:  # an OSError's own line names the file, as when the disk fills up
        print("set-up: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: stopped; run the same command again to go on", file=sys.stderr)
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
    for version in versions:
        candidates = [Path(folder) / ("python" + version) for folder in os.environ.get("PATH", "").split(os.pathsep)]
        candidates += sorted(Path.home().glob(".pyenv/versions/%s.*/bin/python3" % version))
        for candidate in candidates:
            if _makes_environments(str(candidate), version):
                return str(candidate)
    if here in versions:
        package = "install it (Debian and Ubuntu: sudo apt install python%s-venv) and run this again" % here
        raise SetUpError("Python %s lacks its venv module; %s" % (here, package))
    remedy = "(your system's python{0} and python{0}-venv, or pyenv install {0}) and run this again".format(versions[0])
    raise SetUpError(
        "Python %s is needed, and this is Python %s with no other one found; install one %s"
        % (wanted or "3.11, 3.12 or 3.13", "%d.%d.%d" % sys.version_info[:3], remedy)
    )


def set_up(venv: Path, lock: Path, wanted=None) -> None:
    """Bring an environment to what its lock says; do nothing when it is there already.

    Raises  SetUpError when a step fails; a later run goes on from there
    """
    stamp, log, python = venv / ".set-up", venv / "set-up.log", venv / "bin" / "python"
    usable = _version_of(venv, wanted)
    if usable and stamp.exists() and stamp.read_text() == _fingerprint(venv, lock):
        return
    count = sum(1 for line in lock.read_text().splitlines() if line)
    print("Set-up of %s: %d packages of %s, once. About two minutes." % (venv.name, count, lock.name))
    began = time.time()
    try:
        venv.mkdir(exist_ok=True)
        log.write_text("")
    except OSError as error:
        line = "%s cannot be written (%s); copy the course to a folder of your own" % (error.filename, error.strerror)
        raise SetUpError(line) from None
    require_disk(venv)
    if not (usable and _runs(str(python), "import pip")):
        base = getattr(sys, "_base_executable", sys.executable)  # never the environment that is being replaced
        make = [base, "-I", "-m", "venv", "--clear", venv]
        _step("1/5 environment with Python %d.%d.%d" % sys.version_info[:3], make, log)
    pip = [python, "-I", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2"]
    _step("2/5 uv, the installer", pip + ["uv"], log)
    uv, to = [venv / "bin" / "uv", "pip"], ["--python", python] + _index_options(python)
    _step("3/5 packages", uv + ["sync", "--compile-bytecode"] + to + [lock], log)
    _step("4/5 the course itself", uv + ["install"] + to + ["--no-deps", "--editable", ROOT], log)
    kernel = [python, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"]
    for setting in KERNEL_ENVIRONMENT:
        kernel += ["--env"] + setting.split("=")
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
    """The cause and its remedy, where the output of pip or uv shows it; else its last line."""
    for pattern, meaning in CAUSES:
        if re.search(pattern, output):
            return meaning
    return (["no output"] + [line.strip() for line in output.splitlines() if line.strip()])[-1]


def _makes_environments(python: str, version: str) -> bool:
    """Whether it is this version, truly runs (a shim may not) and has what Debian splits off."""
    return _runs(python, "import ensurepip, sys, venv; sys.exit('%%d.%%d' %% sys.version_info[:2] != %r)" % version)


def _runs(python: str, code: str) -> bool:
    nothing = subprocess.DEVNULL
    try:
        return subprocess.call([python, "-I", "-c", code], stdout=nothing, stderr=nothing) == 0
    except OSError:
        return False


def _version_of(venv: Path, wanted) -> str:
    """The Python that an environment was made with; "" for one that does not fit, or was moved since.

    Its scripts hold the folder's path, and so does the record of how it was made.
    """
    config = venv / "pyvenv.cfg"
    if not (config.is_file() and (venv / "bin" / "python").exists()):
        return ""
    match = re.search(r"^version = ((3\.\d+)\..*)$", config.read_text(), re.MULTILINE)
    moved = not re.search(" %s$" % re.escape(str(venv)), config.read_text(), re.MULTILINE)
    return match.group(1) if match and not moved and match.group(2) in ([wanted] if wanted else SUPPORTED) else ""


def _fingerprint(venv: Path, lock: Path) -> str:
    """Changes with everything that an environment is made from."""
    parts = [path.read_bytes() for path in (lock, ROOT / "pyproject.toml", Path(__file__))]
    return hashlib.sha256(b"\0".join(parts + [_version_of(venv, None).encode()])).hexdigest()


def _step(title: str, command, log: Path) -> None:
    """Run one command: its milestones to the terminal, all of it to the log. Raises SetUpError when it fails."""
    print("  " + title, flush=True)
    command, lines, streams = list(map(str, command)), [], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, universal_newlines=True, errors="replace", **streams)
    try:
        for line in process.stdout:
            lines.append(line)
            if MILESTONE.match(line):
                print("      " + line.strip(), flush=True)
    finally:
        process.wait()
        with log.open("a") as file:
            file.write("$ %s\n%s" % (" ".join(command), "".join(lines)))
    if process.returncode:
        raise SetUpError("stopped at %s: %s; the whole output is in %s" % (title, explain("".join(lines)), log))


def _index_options(python: Path) -> list:
    """The package index that pip is configured with, for uv, which does not read pip's settings."""
    listing = subprocess.check_output([str(python), "-I", "-m", "pip", "config", "list"], universal_newlines=True)
    match = re.search(r"^\S+\.index-url='(.*)'$", listing, re.MULTILINE)  # pip lists its environment first
    return ["--default-index", match.group(1)] if match else []


if __name__ == "__main__":
    sys.exit(main())
