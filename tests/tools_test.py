"""Calls the scripts of tools/ wrongly, and in folders where nothing is set up.

    tools_test.py SOURCE_FOLDER
"""
import ast
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()


def run(command, folder=ROOT, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ATELIER_")}
    return subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=120)


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_tools_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def bare_copy(self):
        """The tools in a folder of their own, where nothing is set up or built."""
        shutil.copytree(ROOT / "tools", self.folder / "tools")
        for file in ("CMakePresets.json", ".clang-format"):
            shutil.copy(ROOT / file, self.folder)
        return self.folder

    def check_usage(self, result, *words):
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)
        for word in ("error: tools/",) + words:
            self.assertIn(word, result.stderr)
        self.assertEqual("", result.stdout)

    def test_help_says_how_to_call(self):
        for tool in ("setup", "build", "check", "test", "format", "demo", "gpu"):
            with self.subTest(tool):
                result = run([f"tools/{tool}", "--help"])
                self.assertEqual(0, result.returncode, result.stderr)
                self.assertTrue(result.stdout.startswith(f"usage: tools/{tool}"), result.stdout)

    def test_unknown_arguments_are_named(self):
        self.check_usage(run(["tools/setup", "--gpu"]), "'--gpu'")
        self.check_usage(run(["tools/setup", "--cpu", "stray"]), "'stray'")
        self.check_usage(run(["tools/build", "relaese"]), "'relaese'", "release, dev and asan")
        self.check_usage(run(["tools/build", "release", "--fast"]), "'--fast'")
        self.check_usage(run(["tools/check", "host/nowhere"]), "tests/host/nowhere", " host/plan ")
        self.check_usage(run(["tools/check", "--fast"]), "'--fast'")
        self.check_usage(run(["tools/test", "everything"]), "'everything'")
        self.check_usage(run(["tools/format", "--chekc"]), "'--chekc'")
        self.check_usage(run(["tools/format", "no_such_file.cpp"]), "'no_such_file.cpp'")
        self.check_usage(run(["tools/demo", "--fast"]), "'--fast'")
        self.check_usage(run(["tools/gpu", "measure"]), "'measure'")
        self.check_usage(run(["tools/gpu", "check", "--fast"]), "--fast")
        self.check_usage(run(["tools/gpu", "pack"]), "FOLDER")

    def test_setup_check_changes_nothing_and_says_what_is_missing(self):
        folder = self.bare_copy()
        result = run(["tools/setup", "--cpu", "--check"], folder)
        self.assertEqual(1, result.returncode, result.stderr)
        self.assertIn("missing: ", result.stdout)
        self.assertFalse((folder / ".deps").exists())

    def test_setup_check_finds_what_is_absent_outdated_or_damaged(self):
        folder = self.bare_copy()
        subprocess.run([sys.executable, "-m", "venv", folder / ".deps/venv"], check=True)
        site = next((folder / ".deps/venv/lib").glob("python3*/site-packages"))

        def put(line, version=None):
            name, pinned = line.split("==")
            info = site / f"{name.replace('-', '_')}-{pinned}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version or pinned}\n")
            (site / f"{name}.txt").write_text("content")
            (info / "RECORD").write_text(f"{name}.txt,,7\n{info.name}/RECORD,,\n")

        lines = [line for line in (ROOT / "tools/requirements.txt").read_text().splitlines()
                 if not line.startswith("#")]
        check = ["tools/setup", "--cpu", "--check"]
        for line in lines[1:]:
            put(line)
        if "Debian packages" in (said := run(check, folder).stdout) and "missing" in said.split("Debian")[0]:
            self.skipTest(said)
        self.assertIn(f"missing: in .deps/venv: {lines[0]}\n", run(check, folder).stdout)
        put(lines[0])
        result = run(check, folder)
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        put(lines[1], version="0.0.1")
        self.assertIn(f"missing: in .deps/venv: {lines[1]}\n", run(check, folder).stdout)
        put(lines[1])
        (site / f"{lines[2].split('==')[0]}.txt").write_text("cut off")
        self.assertEqual(0, run(check, folder).returncode)
        (site / f"{lines[2].split('==')[0]}.txt").write_text("cut")
        result = run(check, folder)
        self.assertEqual(1, result.returncode)
        self.assertIn(f"missing: in .deps/venv: {lines[2]}\n", result.stdout)

    def test_build_without_libtorch_says_what_to_do(self):
        result = run(["tools/build"], self.bare_copy())
        self.assertEqual(3, result.returncode, result.stderr)
        self.assertIn("run tools/setup", result.stderr)

    def test_build_with_a_wrong_libtorch_folder_fails(self):
        shutil.copytree(ROOT / "sdk" / "cmake", self.bare_copy() / "cmake")
        (self.folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\n"
            "list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/cmake)\nfind_package(LibTorch REQUIRED)\n")
        result = run(["tools/build"], self.folder, ATELIER_TORCH_DIR=str(self.folder))
        self.assertNotEqual(0, result.returncode)
        self.assertIn("ATELIER_TORCH_DIR", result.stderr)

    def without_gpu(self, *arguments):
        """tools/gpu where no nvidia-smi is found."""
        links = self.folder / "path"
        links.mkdir(exist_ok=True)
        if not (links / "python3").exists():
            (links / "python3").symlink_to(sys.executable)
        return run([ROOT / "tools/gpu", *arguments], PATH=str(links), PYTHONDONTWRITEBYTECODE="1")

    def test_gpu_is_skipped_in_one_line_without_one(self):
        for part in ("check", "kernels", "models", "programs", "all"):
            with self.subTest(part):
                result = self.without_gpu(part)
                self.assertEqual(77, result.returncode, result.stderr)
                self.assertEqual(1, len(result.stdout.splitlines()), result.stdout)
                self.assertIn("no GPU", result.stdout)

    def test_a_pack_that_would_need_more_than_it_has_is_refused(self):
        (self.folder / "full").mkdir()
        (self.folder / "full/file").touch()
        self.check_usage(run(["tools/gpu", "pack", str(self.folder / "full")]), "not empty")
        sys.path.insert(0, str(ROOT / "tools"))
        import gpu_pack
        binary = pathlib.Path(shutil.which("bash")).resolve()
        libraries = gpu_pack.resolved(binary)
        foreign = [name for name in libraries if not gpu_pack.OF_THE_SYSTEM.match(name)]
        if not foreign:
            self.skipTest("the shell here needs nothing but the system's own libraries")
        pack, torch = self.folder / "pack", self.folder / "site/torch"
        pack.mkdir()
        inside = pack / "bash"
        shutil.copy(binary, inside)
        with self.assertRaisesRegex(gpu_pack.PackFailed, f"{re.escape(foreign[0])} is found in .* outside of the pack"):
            gpu_pack.check_libraries(pack, torch, [inside])
        with self.assertRaisesRegex(gpu_pack.PackFailed, "exit code"):
            gpu_pack.call(["readelf", "-d", pack / "missing"])

    def test_gpu_makes_a_page_of_rows_beside_their_predictions(self):
        self.bare_copy()
        pages = self.folder / "docs/benchmarks"
        pages.mkdir(parents=True)
        (pages / "gpu_predictions.md").write_text("| row | unit | H100 | H200 | from |\n| --- | --- | --- | --- | --- |\n"
                                                  "| a copy | GB/s | 3000 | 4300 | bytes |\n")
        row = {"part": "kernels", "row": "a copy", "status": "passed", "seconds": 1.0, "gpu": "NVIDIA H200", "ms": 2.0,
               "rate": 2150.0, "unit": "GB/s", "prediction": {"value": 4300.0, "unit": "GB/s"}}
        (self.folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
        result = run(["tools/gpu", "page", "rows.jsonl"], self.folder)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("| a copy | passed | 2 ms, 2.15e+03 GB/s | 4300 GB/s | 0.50 |", (pages / "gpu.md").read_text())
        (self.folder / "rows.jsonl").write_text(json.dumps({**row, "gpu": "the CPU"}) + "\n")
        self.assertEqual(2, run(["tools/gpu", "page", "rows.jsonl"], self.folder).returncode)

    def test_gpu_goes_on_behind_a_row_that_ends_its_program(self):
        self.bare_copy()
        programs = self.folder / "build/release/bin"
        programs.mkdir(parents=True)
        (programs / "atelier").touch()
        kernels = programs / "atelier-bench-ops"
        kernels.write_text("""#!/usr/bin/env python3
import json, sys
names = ["first", "crash", "last"]
for name in names if "--list" in sys.argv else names[int(sys.argv[sys.argv.index("--from") + 1]):]:
    if name == "crash" and "--list" not in sys.argv:
        sys.exit("it broke")
    print(json.dumps({"row": name, "ms": 2.0}), flush=True)
""")
        kernels.chmod(0o755)
        result = run(["tools/gpu", "kernels", "--device", "cpu", "--json", "rows.jsonl"], self.folder)
        self.assertEqual(1, result.returncode, result.stdout + result.stderr)
        rows = [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]
        self.assertEqual([("first", "passed"), ("crash", "failed"), ("last", "passed")],
                         [(row["row"], row["status"]) for row in rows])
        self.assertIn("it broke", rows[1]["output"])
        self.assertIn("| last | passed | 2 ms |", (self.folder / "rows.md").read_text())

    def gpu_tool(self):
        """tools/gpu of a bare copy as a module."""
        self.bare_copy()
        loader = importlib.machinery.SourceFileLoader("gpu_tool", str(self.folder / "tools/gpu"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_tool", loader))
        sys.modules["gpu_tool"] = module  # which its dataclasses look for
        self.addCleanup(sys.modules.pop, "gpu_tool")
        with unittest.mock.patch.object(sys, "dont_write_bytecode", True):
            loader.exec_module(module)
        return module

    def test_rows_of_gpu_are_kept_as_they_come_and_late_ones_are_no_failure(self):
        tool = self.gpu_tool()
        file = self.folder / "rows.jsonl"
        report = tool.Report(file, "the CPU")
        slow = "import time; print('{\"row\": \"half\", \"ms\": 2.0}', flush=True); print('said', flush=True); time.sleep(60)"
        with contextlib.redirect_stdout(io.StringIO()):
            tool.run_row(tool.Row("models", "slow", [sys.executable, "-c", slow], 60), 0.5, report)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([("half", "passed"), ("slow", "late")], [(row["row"], row["status"]) for row in rows])
        self.assertEqual("said\n", rows[1]["output"])
        self.assertEqual(0, report.count("failed"))

    def test_gpu_all_goes_on_behind_what_fails_and_its_page_says_so(self):
        self.bare_copy()
        release = self.folder / "build/release"
        failing = "#!/usr/bin/env python3\nimport sys\nsys.exit('wrong')\n"
        bench = """#!/usr/bin/env python3
import json
print(json.dumps({"row": "timed", "limit_s": 9, "ms": 2.0}))
"""
        for name, text in (("bin/atelier", failing), ("tests/device_operators_test", failing),
                           ("tests/device_memory_test", failing), ("bin/atelier-bench-ops", bench)):
            (release / name).parent.mkdir(parents=True, exist_ok=True)
            (release / name).write_text(text)
            (release / name).chmod(0o755)
        for name, text in (("bench/gpu_models.py", bench), ("tests/gpu/places_test.py", failing),
                           ("tests/gpu/ranks_test.py", failing), ("tests/parity/run.py", failing),
                           ("tests/parity/device_suites.txt", "dit vae\n")):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        result = run(["tools/gpu", "all", "--device", "cpu", "--json", "rows.jsonl"], self.folder)
        self.assertEqual(1, result.returncode, result.stdout + result.stderr)
        rows = [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]
        self.assertEqual(["check", "kernels", "models", "programs"], list(dict.fromkeys(row["part"] for row in rows)))
        self.assertEqual({"timed"}, {row["row"] for row in rows if row["status"] == "passed"})
        self.assertEqual("two ranks of one device", rows[-1]["row"])
        page = (self.folder / "rows.md").read_text()
        self.assertRegex(page, r"\*\*\d+ failed\*\*, so .*doctor")
        self.assertIn("| timed | passed | 2 ms |", page)

    def test_check_of_gpu_begins_with_kernels_of_our_own(self):
        tool = self.gpu_tool()
        with unittest.mock.patch.object(tool, "find_tool", lambda name: "/bin/" + name):
            rows = tool.check_rows("cuda")
        kernels = [row for row in rows if "fused" in map(str, row.command)]
        self.assertEqual("doctor", rows[0].name)
        self.assertIs(kernels[0], rows[1])
        under = [list(map(str, row.command)) for row in rows if " under " in row.name]
        self.assertEqual(["memcheck", "memcheck", "racecheck", "racecheck"],
                         [command[command.index("--tool") + 1] for command in under])
        for command in under:
            self.assertEqual("kns=" + tool.OWN_KERNELS, command[command.index("--kernel-regex") + 1])
            self.assertNotIn("model", command)

    def test_a_pack_of_a_build_that_is_not_up_to_date_is_refused(self):
        sys.path.insert(0, str(ROOT / "tools"))
        import gpu_pack
        (self.folder / "build.ninja").write_text("rule copy\n  command = cp $in $out\nbuild made: copy source\n")
        (self.folder / "source").write_text("one")
        made = self.folder / "made"
        with self.assertRaisesRegex(gpu_pack.PackFailed, "older than the sources; run tools/build"):
            gpu_pack.check_is_built(self.folder, [made])
        self.assertEqual(0, run(["ninja", "-C", str(self.folder)]).returncode)
        gpu_pack.check_is_built(self.folder, [made])

    def test_a_pack_is_refused_beside_another_libtorch(self):
        tool = self.gpu_tool()
        site = self.folder / "site/torch"
        (site / "lib").mkdir(parents=True)
        (site / "__init__.py").touch()
        (site / "version.py").write_text("__version__ = '2.11.0+cu128'\n")
        (self.folder / "pack.json").write_text(json.dumps({"torch": "2.11.0+cu130"}))
        with unittest.mock.patch.object(tool.importlib.util, "find_spec",
                                        lambda name: unittest.mock.Mock(origin=str(site / "__init__.py"))):
            with self.assertRaisesRegex(tool.Failed, r"has PyTorch 2\.11\.0\+cu128, .* built against 2\.11\.0\+cu130"):
                tool.prepare_pack(["torch"])

    def test_all_that_a_pack_imports_is_in_it_or_asked_for(self):
        tool = self.gpu_tool()
        sys.path.insert(0, str(ROOT / "tools"))
        import gpu_pack
        files = {file for pattern in gpu_pack.SOURCES for file in ROOT.glob(pattern) if file.suffix == ".py"}
        known = {file.stem for file in files} | set(sys.stdlib_module_names)
        known |= set(gpu_pack.PYTHON_PACKAGES) | set(tool.EXPECTED_PYTHON)
        # Of the comparisons with references those count that run there, and what they import.
        here = {file.stem: file for file in files}
        suites = (ROOT / "tests/parity/device_suites.txt").read_text().split()
        left = [file for file in sorted(files) if file.parent.name != "parity"]
        left += [here["run"], *(here[suite + "_parity_test"] for suite in suites)]
        seen = set()
        while left:
            file = left.pop()
            if file in seen:
                continue
            seen.add(file)
            for node in ast.walk(ast.parse(file.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                    [node.module] if isinstance(node, ast.ImportFrom) else []
                left += [here[name] for name in names if name in here]
                self.assertLessEqual({name.split(".")[0] for name in names}, known, file)
        # diffusers cleans prompts with it where it is installed, and leaves them as they are where it is not.
        self.assertIn("ftfy", gpu_pack.PYTHON_PACKAGES)

    def test_every_measurement_of_gpu_has_a_prediction(self):
        build = ROOT / "build/release/bin"
        kernels = build / "atelier-bench-ops"
        if not kernels.exists():
            self.skipTest("atelier-bench-ops is not built")
        page = (ROOT / "docs/benchmarks/gpu_predictions.md").read_text()
        predicted = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")}
        names = run([kernels, "--device", "cpu", "--list"]).stdout.splitlines()
        rows = {json.loads(line)["row"] for line in names}
        models = run([sys.executable, "bench/gpu_models.py", "--list"])
        self.assertEqual(0, models.returncode, models.stderr)
        for line in models.stdout.splitlines():
            rows |= set(json.loads(line)["measures"])
        self.assertGreater(len(rows), 80)
        self.assertEqual(set(), rows - predicted)

    @unittest.skipUnless(shutil.which("clang-format-14"), "clang-format-14 is not installed")
    def test_format_names_what_is_not_formatted(self):
        ragged = self.bare_copy() / "ragged.cpp"
        ragged.write_text("int  main( ){return 0;}\n")
        result = run(["tools/format", "--check", "ragged.cpp"], self.folder)
        self.assertEqual(1, result.returncode, result.stderr)
        self.assertIn("ragged.cpp:1", result.stderr)
        self.assertEqual("int  main( ){return 0;}\n", ragged.read_text())
        self.assertEqual(0, run(["tools/format", "ragged.cpp"], self.folder).returncode)
        self.assertEqual("int main() {\n  return 0;\n}\n", ragged.read_text())
        self.assertEqual(0, run(["tools/format", "--check", "ragged.cpp"], self.folder).returncode)


if __name__ == "__main__":
    unittest.main()
