"""Installs the build, and lets the installed program begin a plugin of the template, build it and judge it.

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
CLANG = shutil.which("clang++") or shutil.which("clang++-14")


class PluginTemplate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_template_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_in(cls.folder, CMAKE, "--install", BUILD, "--prefix", str(cls.folder / "first"))
        # The tree is moved before it is used: it is relocatable.
        (cls.folder / "first").rename(cls.folder / "prefix")
        cls.prefix = cls.folder / "prefix"
        os.environ["CXXFLAGS"] = "-Wall -Wextra -Werror"
        cls.begun = cls.run_in(cls.folder, cls.prefix / "bin/atelier", "plugin", "new", "my_toy").split()
        cls.built = cls.run_in(cls.folder, cls.prefix / "bin/atelier", "plugin", "build", "my_toy").splitlines()[-1]

    @classmethod
    def run_in(cls, folder, *command, environment=None):
        result = subprocess.run(list(map(str, command)), cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))} gives {result.returncode}:\n{result.stdout}")
        return result.stdout

    def atelier(self, *arguments, code=0):
        # No variable but those that size the machine and find CMake: the installed program needs none.
        kept = {k: os.environ[k] for k in ("PATH", "OMP_NUM_THREADS", "ASAN_OPTIONS", "UBSAN_OPTIONS") if k in os.environ}
        result = subprocess.run([self.prefix / "bin/atelier", *arguments], cwd=self.folder, env=kept, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def test_the_installed_tree_is_complete(self):
        for file in ("bin/atelier", "lib/libatelier_sdk.so", "include/atelier/plugin.h",
                     "include/atelier/sdk_hash.h", "include/atelier/ops/linear.h",
                     "lib/cmake/AtelierSdk/AtelierSdkConfig.cmake", "lib/cmake/AtelierSdk/plugin.map",
                     "share/doc/atelier/README.md", "share/doc/atelier/docs/plugins.md",
                     "share/atelier/plugin_template/toy.cpp"):
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

    def test_a_begun_plugin_has_its_own_name(self):
        self.assertEqual(["my_toy/CMakeLists.txt", "my_toy/README.md", "my_toy/my_toy.cpp"], self.begun)
        self.assertEqual("my_toy/build/my_toy.so", self.built)
        text = "".join((self.folder / file).read_text() for file in self.begun)
        self.assertEqual([], re.findall(r"\btoy\b|\bToy", text))
        self.assertIn('ATELIER_PLUGIN(MyToyFamily, "my_toy", "0.1.0")', text)
        cache = (self.folder / "my_toy/build/CMakeCache.txt").read_text()
        self.assertIn("CMAKE_BUILD_TYPE:STRING=Release", cache)

    def test_what_a_renamed_target_left_is_no_plugin_of_the_folder(self):
        build = self.folder / "my_toy/build"
        (build / "CMakeFiles/old_toy.dir").mkdir()
        (build / "old_toy.so").write_bytes((build / "my_toy.so").read_bytes())
        try:
            built = self.run_in(self.folder, self.prefix / "bin/atelier", "plugin", "build", "my_toy").splitlines()
        finally:
            (build / "old_toy.so").unlink()
            (build / "CMakeFiles/old_toy.dir").rmdir()
        self.assertIn("my_toy/build/my_toy.so", built)
        self.assertNotIn("my_toy/build/old_toy.so", built)

    def test_what_cannot_be_begun_or_built_is_one_error(self):
        for words, code, said in (
            (("new", "my_toy"), 2, "the folder is there already"),
            (("new", "lumina2"), 2, "is a plugin of this name"),
            (("new", "My-Toy"), 2, "small letters, digits and _"),
            (("new", "9toy"), 2, "begins with a letter"),
            (("new", "test"), 2, "CMake has a target test"),
            (("new", "rebuild_cache"), 2, "CMake has a target rebuild_cache"),
            (("build", "nowhere"), 2, "there is no CMakeLists.txt"),
            (("biuld", "my_toy"), 2, "did you mean build?"),
        ):
            told = self.atelier("plugin", *words, code=code).splitlines()
            self.assertEqual(1, len(told), told)
            self.assertIn(said, told[0])
        folder = self.folder / "wrong"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(wrong LANGUAGES NONE)\n")
        self.assertIn("there is no plugin in its folder build", self.atelier("plugin", "build", "wrong", code=2))
        (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(wrong LANGUAGES NONE)\n"
                                               "file(COPY ${CMAKE_PREFIX_PATH}/lib/libatelier_sdk.so "
                                               "DESTINATION ${CMAKE_BINARY_DIR})\n")
        self.assertIn("it is a library, and no plugin; one of a plugin's sources ends with ATELIER_PLUGIN(",
                      self.atelier("plugin", "build", "wrong", code=2))
        (folder / "CMakeLists.txt").write_text("message(FATAL_ERROR no)\n")
        self.assertIn("the plugin does not build; see above for why [PLUGIN_BUILD]",
                      self.atelier("plugin", "build", "wrong", code=2))
        # A program that was built and not installed has no SDK to build against.
        told = subprocess.run([f"{BUILD}/bin/atelier", "plugin", "build", "my_toy"], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(3, told.returncode)
        self.assertIn("this program was built, not installed; cmake --install ", told.stderr)

    def test_the_plugin_exports_one_symbol(self):
        lines = self.run_in(self.folder, "nm", "-D", "--defined-only", self.built).splitlines()
        self.assertEqual(["atelier_plugin"], [line.split()[-1] for line in lines])

    def test_the_installed_program_finds_its_own_plugins_and_the_template(self):
        own = {p.stem for p in (self.prefix / "lib/atelier/plugins").glob("*.so")}
        listed = self.atelier("plugins")
        for family in own:
            self.assertIn(family, listed)
        self.assertNotIn("my_toy", listed)
        folder = str(pathlib.Path(self.built).parent)
        self.assertIn("my_toy", self.atelier("plugins", "--plugin_path", folder))
        shown = self.atelier("plugins", "show", "my_toy", "--plugin_path", folder)
        for word in ("text_encoder", "dit", "prompt"):
            self.assertIn(word, shown)

    def test_links_of_the_installed_pages_lead_somewhere(self):
        pages = list((self.prefix / "share/doc/atelier").rglob("*.md"))
        self.assertGreater(len(pages), 20)
        dead = [f"{page}: {target}" for page in pages
                for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
                if not (page.parent / target).exists()]
        self.assertEqual([], dead)

    def test_a_begun_plugin_is_built_and_passes_the_conformance_suite(self):
        self.assertIn(" checks passed, 0 failed", self.atelier("plugin", "test", "--plugin_path", "my_toy", "my_toy"))

    @unittest.skipUnless(CLANG, "there is no clang++")
    def test_a_plugin_of_another_compiler_is_opened(self):
        self.atelier("plugin", "new", "of_clang")
        environment = {**os.environ, "CXX": CLANG, "CXXFLAGS": "-Wall"}
        built = self.run_in(self.folder, self.prefix / "bin/atelier", "plugin", "build", "of_clang",
                            environment=environment).splitlines()[-1]
        self.assertIn(b"clang", (self.folder / built).read_bytes())
        self.assertIn(" checks passed, 0 failed", self.atelier("check-plugin", built))

    def of_version(self, version):
        """The built plugin, as if it had been built with that version of the SDK; and both ABI strings."""
        data = (self.folder / self.built).read_bytes()
        start = data.index(b"sdk=")
        abi = data[start:data.index(b"\0", start)].decode()
        other = re.sub(r"sdk=[\d.]+", "sdk=" + version, abi)
        self.assertEqual(len(abi), len(other))
        path = self.folder / f"of_{version}.so"
        path.write_bytes(data.replace(abi.encode(), other.encode()))
        return path, abi, other

    def test_a_plugin_of_an_earlier_minor_is_opened(self):
        major, minor = map(int, self.atelier("--version").split()[1].split("."))
        self.assertGreater(minor, 0, "a new MAJOR has no earlier MINOR: this test begins with the first one")
        path, _, _ = self.of_version(f"{major}.{minor - 1}")
        self.assertIn("0 failed", self.atelier("check-plugin", str(path)))

    def test_a_plugin_of_another_sdk_is_refused_with_both_strings(self):
        major, minor = map(int, self.atelier("--version").split()[1].split("."))
        for version in (f"{major}.{minor + 1}", f"{major + 1}.{minor}"):
            path, abi, other = self.of_version(version)
            for words in (("check-plugin", str(path)),
                          ("generate", "--plugin", str(path), "--model_paths", "[]", "--prompt", "a")):
                said = self.atelier(*words, code=3)
                self.assertEqual(1, len(said.splitlines()), said)
                self.assertIn(f"it was built with SDK {version}, and this program has SDK {major}.{minor} (", said)
                self.assertIn(abi, said)
                self.assertIn(other, said)


if __name__ == "__main__":
    unittest.main()
