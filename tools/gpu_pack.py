"""Puts what tools/gpu needs on another machine into one folder, laid out as the repository is.

    tools/gpu pack FOLDER

Programs, plugins and the tests labelled gpu are those of build/release, stripped; beside them are the shared libraries
that they need and LibTorch's wheel does not bring, the scripts, and the Python packages of the references that such a
machine lacks. The rest of the references (EXPECTED_PYTHON of tools/gpu) is expected there, PyTorch of the build's version.
build/release/torch is a link to LibTorch, which tools/gpu makes anew on the other machine. A pack that needs more than
glibc, libstdc++ and that link is refused, and so are one of more than 45 MiB and one of a build that is not up to date.
"""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST_BYTES = 45 << 20  # of all files
# glibc's and the compiler's own, which every machine has.
OF_THE_SYSTEM = re.compile(r"^(ld-linux-x86-64|lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s))\.so\.\d+$")
PROGRAMS = ("atelier", "atelier-bench", "atelier-bench-ops")
SOURCES = ("tools/gpu", "bench/*.py", "tests/gpu/*.py", "tests/parity/*.py", "tests/parity/device_suites.txt",
           "tests/support/*.py", "tests/data/keys/*.txt", "tests/data/configs/*.json", "examples/tiny_model/make.py",
           "docs/benchmarks/gpu_predictions.md")
PYTHON_PACKAGES = ("diffusers", "importlib_metadata", "zipp", "ftfy", "wcwidth")


class PackFailed(Exception):
    """One line of what is wrong with a pack."""


def call(command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise PackFailed(f"{' '.join(map(str, command))}: exit code {result.returncode}: {said[-1] if said else ''}")
    return result.stdout


# --- ELF files ---


def needed_by(path):
    """The names of the libraries that a program or library is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", call(["readelf", "-d", path]))


def newest_symbols(paths):
    """The newest versions of glibc and libstdc++ that any of them asks for."""
    newest = {}
    for path in paths:
        for library, version in re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+)", call(["readelf", "-V", path])):
            key = tuple(map(int, version.split(".")))
            newest[library] = max(newest.get(library, ()), key)
    return {library: ".".join(map(str, version)) for library, version in newest.items()}


def search_for_all(program):
    """Makes the run path of a program count for the libraries of its libraries too: DT_RUNPATH becomes DT_RPATH."""
    data = bytearray(program.read_bytes())
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for entry in range(offset, offset + size * count, size):
        kind, _, begin, _, _, length = struct.unpack_from("<IIQQQQ", data, entry)
        if kind != 2:  # PT_DYNAMIC
            continue
        for at in range(begin, begin + length, 16):
            if struct.unpack_from("<Q", data, at)[0] == 29:  # DT_RUNPATH
                struct.pack_into("<Q", data, at, 15)  # DT_RPATH
    program.write_bytes(data)


def resolved(program):
    """What the loader finds for a program in an empty environment: paths by name, None where it finds none."""
    result = subprocess.run(["ldd", str(program)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    found = {}
    for line in result.stdout.splitlines():
        match = re.match(r"\s*(\S+) => (not found|/\S+)", line)
        if match:
            found[match[1]] = None if match[2] == "not found" else pathlib.Path(match[2])
    if not found:
        raise PackFailed(f"ldd {program}: {result.stdout}{result.stderr}".strip())
    return found


# --- what goes in ---


def test_programs(build):
    """The programs of the tests labelled gpu, as the build has them."""
    listed = json.loads(call(["ctest", "--test-dir", build, "-L", "^gpu$", "--show-only=json-v1"]))
    programs = {pathlib.Path(test["command"][0]) for test in listed["tests"] if "command" in test}
    # A build folder may have been moved since it was configured.
    programs = {build / "tests" / path.name for path in programs if path.parent.name == "tests"}
    missing = sorted(path.name for path in programs if not path.exists())
    if missing or not programs:
        raise PackFailed(f"{', '.join(missing) or 'no test labelled gpu'}: not built; run tools/build")
    return sorted(programs)


def architectures(build):
    """Which CUDA architectures the build has kernels for; empty: none."""
    cache = (build / "CMakeCache.txt").read_text()
    found = re.search(r"^ATELIER_COMPILED_ARCHITECTURES:INTERNAL=(.+)$", cache, re.MULTILINE)
    return found[1].split(";") if found else []


def torch_folder(build):
    found = re.search(r"^-- LibTorch \S+ in (\S+)|^ATELIER_TORCH_DIR:\w+=(/\S+)$",
                      (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    if found:
        return pathlib.Path(found[1] or found[2])
    own = sorted((ROOT / ".deps/venv/lib").glob("python3*/site-packages/torch"))
    if not own:
        raise PackFailed("no LibTorch under .deps/venv; run tools/setup")
    return own[-1].resolve()


def check_is_built(build, files):
    """Refuses what is older than its sources; a library that programs open is built by no program that is named."""
    stale = call(["ninja", "-C", build, "-n", *(file.relative_to(build) for file in files)])
    if "no work to do" not in stale:
        raise PackFailed(f"{build} is older than the sources; run tools/build")


def copy_binaries(build, target):
    """Stripped. Returns programs, and libraries."""
    programs = [*(build / "bin" / name for name in PROGRAMS), *test_programs(build)]
    # Videos are left out: FFmpeg is several times as large as everything else.
    libraries = [path for path in (*(build / "lib").glob("*.so"), *(build / "lib/atelier/plugins").glob("*.so"))
                 if path.name != "libatelier_video.so"]
    check_is_built(build, [*programs, *libraries])
    copied = {}
    for source in [*programs, *libraries]:
        if not source.exists():
            raise PackFailed(f"{source}: not built; run tools/build")
        copied[source] = target / "build/release" / source.relative_to(build)
        copied[source].parent.mkdir(parents=True, exist_ok=True)
        call(["strip", "--strip-unneeded", "-o", copied[source], source])
    for source in programs:
        search_for_all(copied[source])
    return [copied[source] for source in programs], [copied[source] for source in libraries]


def copy_libraries(binaries, torch, folder):
    """What binaries need and neither the pack, nor LibTorch, nor every system has, and what that needs in turn."""
    system = dict(re.findall(r"^\s+(\S+) \(.*x86-64.*\) => (\S+)$", call(["/sbin/ldconfig", "-p"]), re.MULTILINE))
    waiting, copied = list(binaries), []
    while waiting:
        for name in needed_by(waiting.pop()):
            if OF_THE_SYSTEM.match(name) or (folder / name).exists() or (torch / "lib" / name).exists():
                continue
            if name not in system:
                raise PackFailed(f"{name}: neither in LibTorch nor on this system")
            shutil.copy(os.path.realpath(system[name]), folder / name)
            copied.append(folder / name)
            waiting.append(folder / name)
    return copied


def copy_sources(target):
    for pattern in SOURCES:
        found = sorted(ROOT.glob(pattern))
        if not found:
            raise PackFailed(f"{pattern}: not in the repository")
        for source in found:
            place = target / source.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)


def pack_python(target):
    """The installed packages, each as an archive that is unpacked where it is used."""
    folders = sorted((ROOT / ".deps/venv/lib").glob("python3*/site-packages"))
    target.mkdir()
    for name in PYTHON_PACKAGES:
        records = [record for folder in folders for record in folder.glob(f"{name}-*.dist-info/RECORD")]
        if not records:
            raise PackFailed(f"{name} is not in .deps/venv; run tools/setup --tests")
        site = records[0].parents[1]
        archive = target / (records[0].parent.name.removesuffix(".dist-info") + ".zip")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for line in records[0].read_text().splitlines():
                path = line.split(",")[0]
                if not path.startswith("..") and not path.endswith(".pyc"):
                    file.write(site / path, path)


# --- what is promised ---


def check_libraries(pack, torch, binaries):
    """Every library that a program or plugin needs is in the pack, LibTorch's or the system's own."""
    inside = (pack.resolve(), torch.resolve().parent)  # LibTorch's CUDA libraries lie beside it
    for binary in binaries:
        for name, path in resolved(binary).items():
            if OF_THE_SYSTEM.match(name):
                continue
            if path is None:
                raise PackFailed(f"{binary.relative_to(pack)}: {name} is not found")
            if not any(path.resolve().is_relative_to(folder) for folder in inside):
                raise PackFailed(f"{binary.relative_to(pack)}: {name} is found in {path}, outside of the pack")


def check_programs(pack):
    """Each program starts in an empty environment, and plugins are found and opened."""
    release = pack / "build/release"
    commands = [[release / "bin/atelier", "plugins"],
                [release / "bin/atelier-bench-ops", "--device", "cpu", "--shapes", "small", "--list"],
                *([test, "--device", "cpu", "[comparison],[copies]"] for test in sorted((release / "tests").iterdir()))]
    for plugin in sorted((release / "lib/atelier/plugins").glob("*.so")):
        commands.append([release / "bin/atelier", "plugins", "show", plugin.stem])
    commands.append([release / "bin/atelier-bench"])  # says what is missing
    for command in commands:
        result = subprocess.run([str(word) for word in command], env={}, cwd="/", capture_output=True, text=True,
                                timeout=300)
        if result.returncode != (2 if len(command) == 1 else 0):
            raise PackFailed(f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stderr.strip()}")


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
               and "torch" not in path.relative_to(folder).parts[:3])


def make(target, torch_version):
    build = ROOT / "build/release"
    torch = torch_folder(build)
    kernels = architectures(build)
    if len(kernels) > 1:
        raise PackFailed(f"the build has kernels for {len(kernels)} architectures, and a pack has one; run cmake "
                         "-DATELIER_CUDA_ARCHITECTURES=90 build/release, and tools/build")
    programs, libraries = copy_binaries(build, target)
    copied = copy_libraries([*programs, *libraries], torch, target / "build/release/lib")
    (target / "build/release/torch").symlink_to(torch)
    copy_sources(target)
    pack_python(target / "python")
    needs = newest_symbols([*programs, *libraries, *copied])
    facts = {"torch": torch_version(torch), "cuda_architectures": kernels, "needs": needs}
    (target / "pack.json").write_text(json.dumps(facts, indent=2) + "\n")
    check_libraries(target, torch, [*programs, *libraries])
    check_programs(target)
    size = size_of(target)
    if size > MOST_BYTES:
        raise PackFailed(f"the pack has {size / 2**20:.1f} MiB, and may have {MOST_BYTES >> 20}")
    print(f"{target}: {size / 2**20:.1f} MiB; needs glibc {needs['GLIBC']}, libstdc++ with GLIBCXX_{needs['GLIBCXX']}, "
          f"and PyTorch {facts['torch']}; kernels of our own: {'sm_' + kernels[0] if kernels else 'none, LibTorch has all'}")


def pack(target, torch_version):
    """`torch_version` tells the version of the LibTorch in a folder."""
    if target.exists() and any(target.iterdir()):
        print(f"error: tools/gpu: {target}: the folder is not empty; name a new one", file=sys.stderr)
        return 2
    target.mkdir(parents=True, exist_ok=True)
    try:
        make(target.resolve(), torch_version)
    except PackFailed as failure:
        print(f"error: tools/gpu: {failure}", file=sys.stderr)
        return 1
    return 0
