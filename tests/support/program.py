"""The program that was built, ATELIER_BIN or the release build's, and what tests run it with.

CMake's tests find this module by PYTHONPATH.
"""
import importlib.util
import os
import pathlib
import subprocess
import threading

import fork_server

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ATELIER_BIN") or REPOSITORY / "build/release/bin/atelier").resolve()
FORK_SERVER = PROGRAM.parents[1] / "tests/fork_server.so"  # a build with sanitizers has none
_servers = {}  # by the environment of their starts
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
    """Runs a command line to its end. `code`: the exit code that it has to have, None for any.

    Starts of the program are forks of one process, one at a time; a start beside them is one of its own.
    """
    is_program = str(line[0]) == str(PROGRAM) and FORK_SERVER.exists()
    if is_program and _one_start.acquire(blocking=False):
        try:
            result = _server(environment).run(line, cwd, stdin, timeout)
        finally:
            _one_start.release()
    else:
        result = subprocess.run(line, cwd=cwd, input=stdin, timeout=timeout, capture_output=True, encoding="utf-8",
                                env={**os.environ, **environment})
    assert code in (None, result.returncode), f"exit code {result.returncode}: {line}\n" + \
        result.stdout[-1000:] + result.stderr[-3000:]
    return result


def _server(environment):
    """The server of the program's starts in this environment. Other variables are another server."""
    whole = {**os.environ, **environment}
    key = frozenset(whole.items())
    if key not in _servers:
        _servers[key] = fork_server.ForkServer(PROGRAM, FORK_SERVER, whole)
    return _servers[key]


def run(*words, code=None, cwd=None, stdin="", **environment):
    """Runs the program with these words."""
    return run_line(command(*words), code, cwd, stdin, **environment)


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
