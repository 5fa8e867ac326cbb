"""Calls the scripts of tools/ wrongly, and in folders where nothing is set up.

    tools_test.py SOURCE_FOLDER
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

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
        for tool in ("setup", "build", "test", "format", "demo"):
            with self.subTest(tool):
                result = run([f"tools/{tool}", "--help"])
                self.assertEqual(0, result.returncode, result.stderr)
                self.assertTrue(result.stdout.startswith(f"usage: tools/{tool}"), result.stdout)

    def test_unknown_arguments_are_named(self):
        self.check_usage(run(["tools/setup", "--gpu"]), "'--gpu'")
        self.check_usage(run(["tools/setup", "--cpu", "stray"]), "'stray'")
        self.check_usage(run(["tools/build", "relaese"]), "'relaese'", "release, dev and asan")
        self.check_usage(run(["tools/build", "release", "--fast"]), "'--fast'")
        self.check_usage(run(["tools/test", "everything"]), "'everything'")
        self.check_usage(run(["tools/format", "--chekc"]), "'--chekc'")
        self.check_usage(run(["tools/format", "no_such_file.cpp"]), "'no_such_file.cpp'")
        self.check_usage(run(["tools/demo", "--fast"]), "'--fast'")

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
