"""The program that was built, ATELIER_BIN or the release build's, and what tests run it with.

CMake's tests find this module by PYTHONPATH.
"""
import importlib.util
import io
import os
import pathlib
import resource
import subprocess
import threading

import fork_server

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ATELIER_BIN") or REPOSITORY / "build/release/bin/atelier").resolve()
BUILD = PROGRAM.parents[1]
FORK_SERVER = BUILD / "tests/fork_server.so"  # a build with sanitizers has none
_servers = {}  # by the program and the environment of its starts
_one_start = threading.Lock()


def command(*words, **flags):
    """A command line. A flag that is True stands alone, and one that is None is left out."""
    line = [str(PROGRAM), *map(str, words)]
    for name, value in flags.items():
        if value is True:
            line.append(f"--{name}")
        elif value is not None:
            line += [f"--{name}", str(value)]
    return line


def run_line(line, code=None, cwd=None, stdin="", timeout=300, **environment):
    """Runs a command line to its end. `code`: the exit code that it has to have, None for any."""
    result = run_bytes(line, cwd, stdin.encode(), timeout, **environment)
    result.stdout, result.stderr = (io.TextIOWrapper(io.BytesIO(said), encoding="utf-8").read()
                                    for said in (result.stdout, result.stderr))
    assert code in (None, result.returncode), f"exit code {result.returncode}: {line}\n" + \
        result.stdout[-1000:] + result.stderr[-3000:]
    return result


def run_bytes(line, cwd=None, stdin=b"", timeout=300, **environment):
    """Runs a command line to its end, and gives what it says in bytes, and the `seconds` of a processor's time.

    Starts of a program of the build are forks of one process, one at a time; a start beside them is one of its own.
    """
    if str(line[0]).startswith(f"{BUILD}/") and FORK_SERVER.exists() and _one_start.acquire(blocking=False):
        try:
            return _server(line[0], environment).run(line, cwd, stdin, timeout)
        finally:
            _one_start.release()
    before = _seconds_of_children()
    result = subprocess.run(line, cwd=cwd, input=stdin, timeout=timeout, capture_output=True,
                            env={**os.environ, **environment})
    result.seconds = _seconds_of_children() - before
    return result


def _seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _server(path, environment):
    """The server of a program's starts in this environment. Other variables are another server."""
    whole = {**os.environ, **environment}
    key = (str(path), frozenset(whole.items()))
    if key not in _servers:
        _servers[key] = fork_server.ForkServer(path, FORK_SERVER, whole)
    return _servers[key]


def run(*words, code=None, cwd=None, stdin="", **environment):
    """Runs the program with these words."""
    return run_line(command(*words), code, cwd, stdin, **environment)


def yielding(line):
    """A command line whose run gives way to the test that waits for a moment of it."""
    return ["nice", "-n", "19", *line]


def allowance():
    """Seconds that a promise is exceeded by where more programs run than there are cores."""
    return 3 * max(0, os.getloadavg()[0] / os.cpu_count() - 1)


def write_tiny_model(folder, seed=0, denoiser_blocks=2):
    """The model of examples/tiny_model."""
    spec = importlib.util.spec_from_file_location("make", REPOSITORY / "examples/tiny_model/make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.DENOISER_BLOCKS = denoiser_blocks
    make.make(pathlib.Path(folder), seed=seed)


def write_launcher_file(root, path):
    """Puts the published file of accelerate's that is called so at `path` below `root`."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((REPOSITORY / "tests/data/launchers" / file.name).read_text())
