"""Reads the source tree: layers, names and lists that the compiler does not check.

    tree_test.py SOURCE_FOLDER
"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
CODE = {".h", ".cpp", ".cu"}
LAYERS = ("sdk", "memory", "host", "plugins")

# Which quoted includes a folder may use, beside files of its own folder.
MAY_INCLUDE = {
    "sdk/formats": ("formats/",),
    "sdk/parts": ("atelier/",),
    "sdk": ("atelier/", "formats/"),
    "memory": ("memory/", "atelier/"),
    "host": ("host/", "memory/", "atelier/", "formats/"),
    "plugins": ("atelier/",),
}
# The map of the house: a folder of host/ uses its own headers and those of folders before it. host/README.md says
# what each one holds.
HOST_ORDER = """
    report progress random device distributed media files http tune flags inputs plugins weights model
    lora data optim run sampling samples order generate foreign parameters train
    plan check serve inspect conformance cli main.cpp
""".split()
# Where a family may be named, beside its own folder.
FAMILIES_ALLOWED = ("sdk/parts/", "tests/", "docs/", "examples/", "bench/", "plugins/CMakeLists.txt", "tools/demo", "README.md")


def files(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def name(path):
    return path.relative_to(ROOT).as_posix()


def layer(path):
    return next(f for f in MAY_INCLUDE if name(path).startswith(f + "/"))


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[1] == '"', found[2]


def own_folders(path):
    """Folders whose headers a source may include by their bare name."""
    parts = path.relative_to(ROOT).parts
    own = [path.parent]
    if parts[0] == "plugins":
        own.append(ROOT / parts[0] / parts[1])
    if parts[:2] == ("sdk", "src"):
        own.append(ROOT / "sdk" / "src")
    return own


def families():
    return sorted(p.parent.name for p in (ROOT / "plugins").glob("*/CMakeLists.txt"))


class Tree(unittest.TestCase):
    def code(self):
        found = [p for p in files(*LAYERS) if p.suffix in CODE]
        self.assertGreater(len(found), 30, "the source tree is not where it is looked for")
        return found

    def check(self, problems):
        self.assertEqual([], problems, "\n" + "\n".join(problems))

    def test_no_include_runs_against_the_layers(self):
        problems = []
        for path in self.code():
            for line, quoted, target in includes(path):
                where = f"{name(path)}:{line}: includes {target}"
                if not quoted:
                    if target.startswith(("atelier/", "memory/", "host/", "formats/")):
                        problems.append(f"{where}: our headers are included with quotes")
                elif ".." in target.split("/"):
                    problems.append(f"{where}: climbs out of its folder")
                elif target.startswith(MAY_INCLUDE[layer(path)]):
                    continue
                elif not any((folder / target).is_file() for folder in own_folders(path)):
                    problems.append(f"{where}: {layer(path)} may use {MAY_INCLUDE[layer(path)]}")
        self.check(problems)

    def test_no_include_runs_against_the_order_of_the_host(self):
        on_disk = {p.relative_to(ROOT / "host").parts[0] for p in files("host") if p.suffix in CODE}
        self.assertEqual(sorted(on_disk), sorted(HOST_ORDER))
        rank = {folder: place for place, folder in enumerate(HOST_ORDER)}
        problems = []
        for path in files("host"):
            if path.suffix not in CODE:
                continue
            own = path.relative_to(ROOT / "host").parts[0]
            for line, _, target in includes(path):
                folder = target.split("/")[1] if target.startswith("host/") else own
                if rank[folder] > rank[own]:
                    problems.append(f"{name(path)}:{line}: {own} comes before {folder}: includes {target}")
        self.check(problems)

    def test_the_map_of_the_host_is_written_down(self):
        rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "host/README.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(HOST_ORDER[:-1], rows)

    def test_every_function_of_a_plugin_is_guarded(self):
        guarded = (ROOT / "host/plugins/guarded_family.cpp").read_text(encoding="utf-8")
        functions = [name for header in ("model.h", "model_family.h")
                     for name in re.findall(r"virtual [^;~]*?(\w+)\(",
                                            (ROOT / "sdk/include/atelier" / header).read_text(encoding="utf-8"))]
        self.assertGreater(len(functions), 30)
        self.check([f"host/plugins/guarded_family.cpp: does not forward {function}()"
                    for function in functions if not re.search(rf"\b{function}\([^;]*?override", guarded)])

    def test_formats_and_kernels_do_not_see_libtorch(self):
        self.check([f"{name(path)}:{line}: includes {target}"
                    for path in self.code() if layer(path) == "sdk/formats" or path.suffix == ".cu"
                    for line, _, target in includes(path)
                    if target.startswith(("ATen/", "torch/", "c10/"))])

    def test_every_kernel_runs_under_the_thread_sanitizer(self):
        run = (ROOT / "tests/sdk/cuda/kernel_threads_test.cpp").read_text(encoding="utf-8")
        kernels = [(path, kernel) for path in self.code() if path.suffix == ".cu"
                   for kernel in re.findall(r"extern const RowKernel (\w+)", path.read_text(encoding="utf-8"))]
        self.assertGreater(len(kernels), 20)
        self.check([f"{name(path)}: tests/sdk/cuda/kernel_threads_test.cpp does not run {kernel}"
                    for path, kernel in kernels if f", {kernel}}}" not in run])

    def test_shared_memory_of_kernels_is_said_to_be_uninitialized(self):
        self.check([f"{name(path)}: no ATELIER_UNINITIALIZED({variable}) behind its declaration"
                    for path in files("sdk/src") if path.suffix in {".cu", ".cuh"}
                    for variable, following in re.findall(r"__shared__ \w+ (\w+)[^;]*;\s*(.*)",
                                                          path.read_text(encoding="utf-8"))
                    if following != f"ATELIER_UNINITIALIZED({variable});"])

    def test_the_slow_headers_of_libtorch_stay_out(self):
        slow = re.compile(r"torch/(torch|all|nn|optim|types)\.h$|torch/(nn|optim)/")
        self.check([f"{name(path)}:{line}: includes {target}"
                    for path in self.code() for line, _, target in includes(path)
                    if slow.match(target.replace("torch/csrc/api/include/", ""))])

    def test_families_are_named_in_their_folder_only(self):
        stems = {re.split(r"[_\d]", family)[0] for family in families()} | {"qwen", "wan", "lumina"}
        self.assertGreater(len(families()), 0)
        problems = []
        for path in files(*LAYERS, "tools", "CMakeLists.txt"):
            here = name(path)
            own = path.relative_to(ROOT / "plugins").parts[0] if here.startswith("plugins/") else ""
            if here.startswith(FAMILIES_ALLOWED) or path.suffix not in CODE | {".txt", ".cmake", ".py", ".in", ""}:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for stem in stems:
                    if stem != re.split(r"[_\d]", own)[0] and re.search(
                            rf"(?<![a-z]){stem}(?![a-z])", line, re.IGNORECASE):
                        problems.append(f"{here}:{number}: names the family {stem}")
        self.check(problems)

    def test_nothing_is_called_utils(self):
        vague = re.compile(r"^(utils?|common|core|misc|helpers?)$")
        self.check([name(p) for p in files(*LAYERS, "tests", "bench", "tools", "examples", "docs")
                    if "gloo_shim" not in p.parts  # its folders have Gloo's names
                    and any(vague.match(part.split(".")[0]) for part in p.relative_to(ROOT).parts)])

    def test_the_list_of_public_headers_is_the_folder(self):
        listed = set(re.findall(r"include/atelier/[\w/]+\.h", (ROOT / "sdk/CMakeLists.txt").read_text()))
        on_disk = {p.relative_to(ROOT / "sdk").as_posix() for p in files("sdk/include")}
        self.assertEqual(sorted(f for f in on_disk if not f.startswith("include/atelier/host/")), sorted(listed))

    def test_what_plugins_see_leaves_out_the_hosts_side(self):
        plugins = [*files("plugins", "examples", "tests/experts"),
                   *(p for p in files("sdk/include") if not name(p).startswith("sdk/include/atelier/host/"))]
        self.check([f"{name(path)}:{line}: includes {target}, which is the host's"
                    for path in plugins if path.suffix in CODE for line, _, target in includes(path)
                    if target.startswith("atelier/host/")])

    def test_public_headers_include_public_headers(self):
        self.check([f"{name(path)}:{line}: includes {target}, which is not installed"
                    for path in files("sdk/include") for line, quoted, target in includes(path)
                    if quoted and target != "atelier/sdk_hash.h" and not (ROOT / "sdk/include" / target).is_file()])

    def test_every_source_is_listed(self):
        lists = {p: p.read_text() for p in files(*LAYERS, "tests", "bench")
                 if p.name in ("CMakeLists.txt", "sources.cmake")}
        problems = []
        for path in files(*LAYERS, "tests", "bench"):
            if path.suffix not in {".cpp", ".cu"}:
                continue
            if not any(re.search(rf"(?:(?<![\w/])|(?<=\}}/)){re.escape(path.relative_to(file.parent).as_posix())}"
                                 r"(?![\w/])", text)
                       for file, text in lists.items() if path.is_relative_to(file.parent)):
                problems.append(f"{name(path)}: no CMakeLists.txt lists it")
        listed = " ".join(lists.values()).split()
        for path in files("tests"):
            if path.name.endswith("_test.py"):
                entry = "run.py" if path.parent.name == "parity" else path.name
                if not any(word.strip("()").rsplit("/", 1)[-1] == entry for word in listed):
                    problems.append(f"{name(path)}: no CMakeLists.txt runs it")
        problems += [f"{name(p)}: globs sources" for p, text in lists.items()
                     if re.search(r"file\s*\(\s*GLOB|aux_source_directory", text)]
        self.check(problems)

    def test_headers_say_what_they_are_for(self):
        problems = []
        for path in self.code():
            if path.suffix == ".h":
                text = path.read_text(encoding="utf-8")
                if not text.startswith("//"):
                    problems.append(f"{name(path)}:1: the first line says what the header is for")
                if "#pragma once" not in text:
                    problems.append(f"{name(path)}: no #pragma once")
                if re.search(r"^using namespace", text, re.MULTILINE):
                    problems.append(f"{name(path)}: using namespace in a header")
        self.check(problems)

    def test_sources_keep_the_rules_of_text(self):
        """Ends of files and lines, and comments that begin with their subject: tools/check_text.py."""
        sources = [path for path in files(*LAYERS, "tests", "bench", "examples") if path.suffix in {*CODE, ".inc"}]
        checked = subprocess.run([sys.executable, ROOT / "tools/check_text.py", *sources], capture_output=True, text=True)
        self.check(checked.stdout.splitlines())
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_links_between_documents_lead_somewhere(self):
        problems = []
        for path in [ROOT / "README.md", *files("docs", "plugins", "examples", "bench", "tests", "host", "memory", "sdk")]:
            if path.suffix != ".md":
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
                    if "://" not in target and not (path.parent / target).exists():
                        problems.append(f"{name(path)}:{number}: {target} does not exist")
        self.check(problems)

    def test_file_names_are_snake_case(self):
        self.check([name(p) for p in files(*LAYERS, "tests", "bench") if p.suffix in CODE
                    and not re.fullmatch(r"[a-z0-9_]+\.(h|cpp|cu)", p.name)])


if __name__ == "__main__":
    unittest.main()
