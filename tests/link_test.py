"""Reads what the build made: who links what, what plugins export, what their notes say.

    link_test.py BUILD_FOLDER
"""
import pathlib
import re
import struct
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release").resolve()


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout


def dynamic(path, tag):
    return re.findall(rf"\({tag}\).*?\[(.*?)\]", output("readelf", "-dW", str(path)))


def plugins():
    return sorted((BUILD / "lib/atelier/plugins").glob("*.so"))


def libraries():
    return sorted((BUILD / "lib").glob("*.so"))


def programs():
    return [p for folder in ("bin", "tests") for p in sorted((BUILD / folder).glob("*"))
            if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]


def notes(path):
    """(name, type, description) of every note in .note.atelier."""
    dump = output("readelf", "-SW", str(path))
    found = re.search(r"\.note\.atelier\s+NOTE\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)", dump)
    if not found:
        return []
    offset, size = (int(x, 16) for x in found.groups())
    data, result = path.read_bytes()[offset:offset + size], []
    while data:
        name_size, text_size, kind = struct.unpack_from("<III", data)
        end = 12 + (name_size + 3) // 4 * 4
        result.append((data[12:12 + name_size], kind, data[end:end + text_size]))
        data = data[end + (text_size + 3) // 4 * 4:]
    return result


def kernel_architectures(path):
    """The GPUs that a program has kernels for, out of its section of fat binaries: (kind, number), 1 for PTX and 2 for
    code."""
    found = re.search(r"\.nv_fatbin\s+PROGBITS\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)", output("readelf", "-SW", str(path)))
    if not found:
        return set()
    offset, size = (int(number, 16) for number in found.groups())
    data, at, architectures = path.read_bytes()[offset:offset + size], 0, set()
    while at + 16 <= len(data):
        magic, _, header, rest = struct.unpack_from("<IHHQ", data, at)
        if magic != 0xBA55ED50:
            at += 8  # between two of them
            continue
        end, at = at + header + rest, at + header
        while at < end:
            kind, _, header, rest = struct.unpack_from("<HHIQ", data, at)
            architectures.add((kind, struct.unpack_from("<I", data, at + 28)[0]))
            at += header + rest
    return architectures


class Link(unittest.TestCase):
    def binaries(self):
        self.assertTrue((BUILD / "bin/atelier").is_file(), f"{BUILD} holds no program; build it first")
        self.assertTrue((BUILD / "lib/libatelier_sdk.so").is_file())
        return programs() + libraries() + plugins()

    def test_the_standard_library_comes_before_libtorch(self):
        for path in self.binaries():
            needed = dynamic(path, "NEEDED")
            torch = [i for i, n in enumerate(needed) if n.startswith(("libtorch", "libc10"))]
            if torch:
                with self.subTest(path.name):
                    self.assertIn("libstdc++.so.6", needed)
                    self.assertLess(needed.index("libstdc++.so.6"), torch[0], needed)

    def test_only_the_cuda_library_links_cuda(self):
        for path in self.binaries():
            if path.name != "libatelier_cuda.so":
                with self.subTest(path.name):
                    self.assertEqual([], [n for n in dynamic(path, "NEEDED")
                                          if re.match(r"lib(torch(_cuda.*)?|c10_cuda|cu\w+|nccl)\.so", n)])

    def test_the_cuda_library_has_the_doors_that_the_program_opens(self):
        path = BUILD / "lib/libatelier_cuda.so"
        if not path.is_file():
            self.skipTest("built without CUDA")
        symbols = output("nm", "-D", "--defined-only", str(path)).split()
        for door in ("atelier_cuda_open", "atelier_cuda_limit_memory"):
            self.assertIn(door, symbols)

    def test_kernels_are_there_for_every_architecture(self):
        cache = (BUILD / "CMakeCache.txt").read_text()
        wanted = re.search(r"^ATELIER_COMPILED_ARCHITECTURES:INTERNAL=(.*)$", cache, re.MULTILINE)[1]
        if not wanted:
            self.skipTest("built without CUDA kernels")
        numbers = list(map(int, wanted.split(";")))
        compiled = {path.name: kernel_architectures(path) for path in self.binaries()}
        compiled = {name: found for name, found in compiled.items() if found}
        self.assertIn("device_memory_test", compiled)
        for name, found in compiled.items():
            with self.subTest(name):
                self.assertEqual({(2, number) for number in numbers} | {(1, max(numbers))}, found)

    def test_only_the_video_library_links_ffmpeg(self):
        ffmpeg = re.compile(r"lib(av\w+|sws\w+)\.so")
        for path in self.binaries():
            # The fuzzed reader of videos has FFmpeg linked in.
            if path.name not in ("libatelier_video.so", "video_asan_test"):
                with self.subTest(path.name):
                    self.assertEqual([], [n for n in dynamic(path, "NEEDED") if ffmpeg.match(n)])

    def test_the_video_library_has_the_door_that_the_program_opens(self):
        path = BUILD / "lib/libatelier_video.so"
        if not path.is_file():
            self.skipTest("built without FFmpeg")
        self.assertIn("atelier_video", output("nm", "-D", "--defined-only", str(path)).split())

    def test_plugins_export_one_symbol_and_stay_loaded(self):
        self.assertGreater(len(plugins()), 0)
        for path in plugins():
            with self.subTest(path.name):
                lines = output("nm", "-D", "--defined-only", str(path)).splitlines()
                self.assertEqual(["atelier_plugin"], [line.split()[-1] for line in lines])
                self.assertIn("NODELETE", output("readelf", "-dW", str(path)))

    def test_plugins_carry_a_note(self):
        for path in plugins():
            with self.subTest(path.name):
                found = notes(path)
                self.assertEqual(1, len(found))
                name, kind, text = found[0]
                self.assertEqual((b"atelier\0", 1), (name, kind))
                abi, family, version = text.rstrip(b"\0").decode().split("\0")
                self.assertTrue(abi.startswith("sdk="), abi)
                self.assertEqual(path.stem, family)
                self.assertRegex(version, r"^\d+\.\d+\.\d+$")

    def test_the_sdk_hides_its_parsers(self):
        lines = output("nm", "-DC", "--defined-only", str(BUILD / "lib/libatelier_sdk.so")).splitlines()
        self.assertGreater(sum("atelier::" in line for line in lines), 50)
        self.assertEqual([], [line for line in lines if "atelier::formats::" in line])

    def test_run_paths_are_relocatable(self):
        for path in self.binaries():
            with self.subTest(path.name):
                for entry in ":".join(dynamic(path, "RUNPATH")).split(":") if dynamic(path, "RUNPATH") else []:
                    self.assertNotEqual("", entry, "an empty entry is the current folder")
                    self.assertFalse(entry.startswith(str(BUILD)), f"{entry} lies in the build folder")
                self.assertNotIn("not found", output("ldd", str(path)))


if __name__ == "__main__":
    unittest.main()
