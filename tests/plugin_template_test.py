"""Installs the build, builds examples/plugin_template against it out of tree, and lets the program judge the plugin.

    plugin_template_test.py BUILD_FOLDER TEMPLATE_FOLDER CMAKE
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, TEMPLATE = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
CMAKE = sys.argv.pop(1)


class PluginTemplate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_template_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_in(cls.folder, CMAKE, "--install", BUILD, "--prefix", str(cls.folder / "first"))
        # The tree is moved before it is used: it is relocatable.
        (cls.folder / "first").rename(cls.folder / "prefix")
        cls.prefix, cls.built = cls.folder / "prefix", cls.folder / "build"
        shutil.copytree(TEMPLATE, cls.folder / "toy")
        cls.run_in(cls.folder, CMAKE, "-S", "toy", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                   f"-DCMAKE_PREFIX_PATH={cls.prefix}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        cls.run_in(cls.folder, CMAKE, "--build", "build")

    @classmethod
    def run_in(cls, folder, *command, environment=None):
        result = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(command)} gives {result.returncode}:\n{result.stdout}")
        return result.stdout

    def atelier(self, *arguments, code=0):
        # No variable but those that size the machine: the installed program needs none.
        kept = {k: os.environ[k] for k in ("OMP_NUM_THREADS", "ASAN_OPTIONS", "UBSAN_OPTIONS") if k in os.environ}
        result = subprocess.run([self.prefix / "bin/atelier", *arguments], cwd=self.folder, env=kept, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def test_the_installed_tree_is_complete(self):
        for file in ("bin/atelier", "lib/libatelier_sdk.so", "include/atelier/plugin.h",
                     "include/atelier/sdk_hash.h", "include/atelier/ops/linear.h",
                     "lib/cmake/AtelierSdk/AtelierSdkConfig.cmake", "lib/cmake/AtelierSdk/plugin.map"):
            self.assertTrue((self.prefix / file).is_file(), file)
        self.assertFalse((self.prefix / "include/atelier/host").exists())
        self.assertTrue(list((self.prefix / "lib/atelier/plugins").glob("*.so")))
        for path in self.prefix.rglob("*.cmake"):
            self.assertNotIn(str(self.folder / "first"), path.read_text(), path.name)
            self.assertNotIn(str(BUILD), path.read_text(), path.name)

    def test_a_torch_link_beside_bin_takes_precedence(self):
        program = self.prefix / "bin/atelier"
        dynamic = self.run_in(self.folder, "readelf", "-dW", str(program))
        libtorch = pathlib.Path(re.search(r"RUNPATH.*?\[(.*)\]", dynamic)[1].split(":")[-1]).parent
        self.assertTrue((libtorch / "lib/libtorch_cpu.so").is_file(), libtorch)
        (self.prefix / "torch").symlink_to(libtorch)
        try:
            for binary in (program, self.prefix / "lib/libatelier_sdk.so",
                           *(self.prefix / "lib/atelier/plugins").glob("*.so")):
                found = re.search(r"libtorch_cpu\.so => (\S+)", self.run_in(self.folder, "ldd", str(binary)))[1]
                self.assertEqual(self.prefix / "torch/lib/libtorch_cpu.so", pathlib.Path(os.path.normpath(found)))
        finally:
            (self.prefix / "torch").unlink()

    def test_the_template_is_short(self):
        lines = sum(len(p.read_text().splitlines()) for p in pathlib.Path(TEMPLATE).iterdir())
        self.assertLess(lines, 200)

    def test_the_plugin_exports_one_symbol(self):
        lines = self.run_in(self.folder, "nm", "-D", "--defined-only", str(self.built / "toy.so")).splitlines()
        self.assertEqual(["atelier_plugin"], [line.split()[-1] for line in lines])

    def test_the_installed_program_finds_its_own_plugins_and_the_template(self):
        own = {p.stem for p in (self.prefix / "lib/atelier/plugins").glob("*.so")}
        listed = self.atelier("plugins")
        for family in own:
            self.assertIn(family, listed)
        self.assertNotIn("toy", listed)
        self.assertIn("toy", self.atelier("plugins", "--plugin_path", str(self.built)))
        shown = self.atelier("plugins", "show", "toy", "--plugin_path", str(self.built))
        for word in ("text_encoder", "dit", "prompt"):
            self.assertIn(word, shown)

    def test_the_template_passes_the_conformance_suite(self):
        self.atelier("check-plugin", str(self.built / "toy.so"))

    def test_a_plugin_of_another_sdk_is_refused_with_both_strings(self):
        data = (self.built / "toy.so").read_bytes()
        start = data.index(b"sdk=")
        abi = data[start:data.index(b"\0", start)].decode()
        other = abi.replace("sdk=0.", "sdk=9.", 1)
        (self.folder / "other.so").write_bytes(data.replace(abi.encode(), other.encode()))
        said = self.atelier("check-plugin", str(self.folder / "other.so"), code=3)
        self.assertIn(abi, said)
        self.assertIn(other, said)


if __name__ == "__main__":
    unittest.main()
