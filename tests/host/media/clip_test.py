"""Reads the clips of clips/ (made by clips/make), and animations and folders made here.

usage: clip_test.py CLIP_TOOL VIDEO_LIBRARY|-
"""
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from PIL import Image

CLIPS = Path(__file__).parent / "clips"
TOOL, LIBRARY = sys.argv.pop(1), sys.argv.pop(1)
UNIT_MATRIX = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


class Case(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        cls.tool = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True)

    @classmethod
    def tearDownClass(cls):
        _, errors = cls.tool.communicate()
        assert cls.tool.returncode == 0 and errors == "", (cls.tool.returncode, errors)
        cls.scratch.cleanup()

    def ask(self, *words):
        self.tool.stdin.write("\t".join(map(str, words)) + "\n")
        self.tool.stdin.flush()
        line = self.tool.stdout.readline()
        self.assertNotEqual("", line, f"the tool died on {words}")
        return json.loads(line)

    def open(self, path, *limits):
        answer = self.ask("open", path, *limits)
        self.assertIn("ok", answer, answer)
        return answer["ok"]

    def refused(self, code, path, *says, limits=()):
        answer = self.ask("open", path, *limits)
        self.assertEqual(code, answer.get("code"), answer)
        for text in (str(path), *says):
            self.assertIn(text, answer["error"])

    def frames(self, *numbers):
        out = self.folder / "frames.rgb"
        answer = self.ask("read", ",".join(map(str, numbers)), out)
        self.assertIn("ok", answer, answer)
        data, result = out.read_bytes(), []
        for width, height in answer["ok"]:
            size = 3 * width * height
            result.append(np.frombuffer(data[:size], np.uint8).reshape(height, width, 3))
            data = data[size:]
        return result

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path


def sums(frames):
    return [hashlib.md5(frame.tobytes()).hexdigest() for frame in frames]


def over_white(picture):
    white = Image.new("RGB", picture.size, "white")
    rgba = picture.convert("RGBA")
    white.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
    return np.asarray(white)


@unittest.skipIf(LIBRARY == "-", "built without FFmpeg")
class Videos(Case):

    def test_frames_are_ffmpegs_to_the_bit_in_any_order(self):
        for name, expected in json.loads((CLIPS / "frames.json").read_text()).items():
            with self.subTest(name):
                info = self.open(CLIPS / name)
                count = len(info["times"])
                self.assertEqual(len(expected), count)
                self.assertEqual(expected, sums(self.frames(*range(count))))
                for numbers in ([count - 1], [0], [count // 2, count // 2, count - 1], range(1, count, 3), range(count)):
                    self.assertEqual([expected[n] for n in numbers], sums(self.frames(*numbers)))
                for number in reversed(range(count)):
                    self.assertEqual([expected[number]], sums(self.frames(number)))

    def test_containers_say_what_they_hold(self):
        plain = self.open(CLIPS / "plain.mp4")
        self.assertEqual(("mp4", "h264", 64, 48, 0), tuple(plain[k] for k in ("format", "codec", "width", "height", "rotation")))
        self.assertAlmostEqual(24, plain["fps"])
        self.assertAlmostEqual(1, plain["duration"])
        np.testing.assert_allclose(np.arange(24) / 24, plain["times"], atol=1e-9)
        self.assertEqual(("é", '{"seed": 7}'), (plain["metadata"]["title"], plain["metadata"]["comment"]))
        self.assertFalse(plain["sound"] or plain["variable"] or plain["alpha"])
        self.assertTrue(self.open(CLIPS / "sound.mp4")["sound"])
        for name, form, codec in (("plain.mkv", "matroska", "h264"), ("vp9.webm", "webm", "vp9"), ("vp8.webm", "webm", "vp8"),
                                  ("reordered.avi", "avi", "mpeg4"), ("stream.ts", "mpegts", "h264"),
                                  ("ten_bits.mp4", "mp4", "hevc")):
            info = self.open(CLIPS / name)
            self.assertEqual((form, codec), (info["format"], info["codec"]))
            self.assertAlmostEqual(24, info["fps"], delta=0.1)
            self.assertFalse(info["variable"], name)
            self.assertTrue(self.ask("looks", CLIPS / name)["ok"])

    def test_variable_rates_have_the_times_of_their_frames(self):
        info = self.open(CLIPS / "variable.mp4")
        self.assertTrue(info["variable"])
        np.testing.assert_allclose([n / 24 for n in range(12) if n % 4 != 2], info["times"], atol=1e-4)

    def test_an_edit_list_leaves_frames_out(self):
        whole, cut = self.open(CLIPS / "plain.mp4"), self.open(CLIPS / "edit_list.mp4")
        self.assertLess(len(cut["times"]), len(whole["times"]))
        self.assertEqual(0, cut["times"][0])

    def test_frames_are_turned_upright(self):
        data = (CLIPS / "plain.mp4").read_bytes()
        at = data.rindex(UNIT_MATRIX)
        self.open(CLIPS / "plain.mp4")
        upright = self.frames(3)[0]
        one = 1 << 16
        for degrees, (a, b, c, d), turned in ((90, (0, one, -one, 0), np.rot90(upright, -1)),
                                              (180, (-one, 0, 0, -one), np.rot90(upright, 2)),
                                              (270, (0, -one, one, 0), np.rot90(upright, 1)),
                                              (0, (-one, 0, 0, one), upright[:, ::-1])):
            matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
            info = self.open(self.write("turned.mp4", data[:at] + matrix + data[at + 36:]))
            self.assertEqual((degrees, turned.shape[1], turned.shape[0]), (info["rotation"], info["width"], info["height"]))
            np.testing.assert_array_equal(turned, self.frames(3)[0])
        tilted = struct.pack(">9i", one, one, 0, -one, one, 0, 0, 0, 1 << 30)
        self.refused("UNSUPPORTED", self.write("tilted.mp4", data[:at] + tilted + data[at + 36:]), "tilted")

    def test_pixels_that_are_not_square_are_stretched(self):
        info = self.open(CLIPS / "wide_pixels.mp4")
        self.assertEqual((85, 48), (info["width"], info["height"]))
        self.assertEqual((48, 85, 3), self.frames(0)[0].shape)

    def test_transparent_frames_are_laid_over_white(self):
        self.assertTrue(self.open(CLIPS / "alpha.webm")["alpha"])
        frame = self.frames(1)[0].astype(int)
        self.assertTrue((frame[:, 0] > 250).all(), frame[:4, 0])
        self.assertLess(frame[:, -8:].min(), 100)

    def test_a_file_that_is_cut_is_told_with_its_frames(self):
        for name in ("plain.mkv", "reordered.avi", "vp9.webm"):
            data = (CLIPS / name).read_bytes()
            self.refused("DATA_LOSS", self.write("cut_" + name, data[:len(data) * 2 // 3]), "cut short", "whole frames to 0.")
        data = (CLIPS / "plain.mp4").read_bytes()  # its index is at the end
        self.refused("DATA_LOSS", self.write("cut.mp4", data[:len(data) // 2]), "cut short")

    def test_damaged_frames_are_told_with_number_and_time(self):
        data = bytearray((CLIPS / "plain.mp4").read_bytes())
        begin = data.index(b"mdat") + 4
        middle = begin + (data.index(b"moov") - begin) // 2
        data[middle:middle + 200] = b"\xff" * 200
        path = self.write("damaged.mp4", data)
        self.assertIn("ok", self.ask("open", path))
        answer = self.ask("read", ",".join(map(str, range(24))), self.folder / "x")
        self.assertEqual("DATA_LOSS", answer.get("code"), answer)
        self.assertRegex(answer["error"], r"damaged\.mp4: frame \d+ \(0\.\d+ s\) ")

    def test_a_size_that_changes_is_told_with_number_and_time(self):
        self.open(CLIPS / "two_sizes.mkv")
        self.assertEqual(4, len(self.frames(0, 1, 2, 3)))
        answer = self.ask("read", "0,5", self.folder / "x")
        self.assertEqual("UNSUPPORTED", answer.get("code"), answer)
        self.assertRegex(answer["error"], r"frame 4 \(\d\.\d+ s\) is 96x48, those before it are 64x48")

    def test_what_is_no_clip_is_refused(self):
        self.refused("UNSUPPORTED", CLIPS / "sound_alone.mp4", "sound and no video")
        self.refused("NOT_FOUND", self.folder / "none.mp4", "No such file")
        self.refused("UNSUPPORTED", self.write("empty.mp4", b""), "empty")
        self.refused("UNSUPPORTED", self.write("x.flv", b"FLV\x01" + bytes(99)), "FLV", "convert it")
        self.refused("DATA_LOSS", self.write("head.mp4", b"\0\0\0\x10ftypisom\0\0\0\0"), "video")
        playlist = self.write("list.mp4", b"#EXTM3U\n#EXTINF:1,\n" + str(CLIPS / "plain.mp4").encode())
        self.refused("UNSUPPORTED", playlist, "an HLS playlist", "name the file of the video itself")
        self.refused("UNSUPPORTED", self.write("a.sdp", b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n"), "an SDP description")
        self.refused("UNSUPPORTED", self.write("page.mp4", b"<!DOCTYPE html><html>"), "a web page")
        self.refused("UNSUPPORTED", self.write("text.mp4", "not found: 猫\n".encode()), "text, and no video")
        self.refused("UNSUPPORTED", self.write("bytes.mp4", bytes(range(256))), "neither a video nor an image")
        unknown = (CLIPS / "plain.mp4").read_bytes().replace(b"avc1", b"zq1x").replace(b"avcC", b"zqxC")
        self.refused("UNSUPPORTED", self.write("unknown.mp4", unknown), "a video of the codec 'zq1x'", "convert it")
        os.mkfifo(self.folder / "pipe.mp4")
        self.refused("INVALID_ARGUMENT", self.folder / "pipe.mp4", "regular file")
        self.assertFalse(self.ask("looks", self.folder / "none.mp4")["ok"])

    def test_limits_hold(self):
        self.refused("INVALID_ARGUMENT", CLIPS / "plain.mp4", "64x48", "limit of 3071", limits=(3071,))
        self.refused("INVALID_ARGUMENT", CLIPS / "plain.mp4", "limit of 23", limits=(3072, 23))
        self.open(CLIPS / "plain.mp4", 3072, 24)

    def test_numbers_of_frames_are_checked(self):
        self.open(CLIPS / "plain.mp4")
        for numbers in ("3,2", "24", "-1"):
            self.assertEqual("INVALID_ARGUMENT", self.ask("read", numbers, self.folder / "x").get("code"))

    def test_names_may_be_any(self):
        for name in ("日本 é 'q'.mp4", "%d.mp4", "-o.mp4", "http:x.mp4"):
            path = self.folder / name
            shutil.copy(CLIPS / "plain.mp4", path)
            self.assertEqual(24, len(self.open(path)["times"]))

    def test_the_library_names_its_version(self):
        self.assertRegex(self.ask("library")["ok"], r"^FFmpeg \d")


class Pictures(Case):

    def pictures(self, count, size=(20, 14), seed=0):
        rng = np.random.default_rng(seed)
        return [rng.integers(0, 256, (size[1], size[0], 3), np.uint8) for _ in range(count)]

    def check(self, path):
        """Frames equal Pillow's, in order and out of it."""
        info = self.open(path)
        with Image.open(path) as picture:
            expected, durations = [], []
            for number in range(picture.n_frames):
                picture.seek(number)
                expected.append(over_white(picture))
                durations.append(picture.info["duration"])
        self.assertEqual(len(expected), len(info["times"]))
        np.testing.assert_allclose(np.cumsum([0] + durations[:-1]) / 1000, info["times"])
        self.assertAlmostEqual(sum(durations) / 1000, info["duration"])
        for frame, other in zip(self.frames(*range(len(expected))), expected):
            np.testing.assert_array_equal(other, frame)
        last = len(expected) - 1
        for frame, number in zip(self.frames(0, 1, 1, last), (0, 1, 1, last)):
            np.testing.assert_array_equal(expected[number], frame)
        np.testing.assert_array_equal(expected[last], self.frames(last)[0])
        self.assertTrue(self.ask("looks", path)["ok"])
        return info

    def test_animated_gifs_equal_pillows(self):
        for transparent in (False, True):
            for disposal in (0, 1, 2, 3):
                with self.subTest(disposal=disposal, transparent=transparent):
                    frames = [Image.fromarray(p).quantize(16) for p in self.pictures(5)]
                    if transparent:
                        for number, frame in enumerate(frames):
                            frame.paste(3, (2 * number, 1, 2 * number + 6, 9))
                    extra = {"transparency": 3} if transparent else {}
                    path = self.folder / f"{disposal}{transparent}.gif"
                    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[40, 50, 60, 70, 80],
                                   disposal=disposal, **extra)
                    self.assertTrue(self.check(path)["variable"])

    def test_animated_webps_equal_pillows(self):
        for lossless in (True, False):
            frames = [Image.fromarray(p).convert("RGBA") for p in self.pictures(4)]
            for number, frame in enumerate(frames):
                frame.putalpha(Image.new("L", frame.size, 60 * number + 40))
            path = self.folder / f"{lossless}.webp"
            frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, lossless=lossless)
            info = self.check(path)
            self.assertEqual(("webp", 20), (info["format"], round(info["fps"])))

    def test_delays_that_are_too_short_are_those_of_browsers(self):
        frames = [Image.fromarray(p) for p in self.pictures(3)]
        path = self.folder / "fast.gif"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=0)
        self.assertEqual([0, 0.1, 0.2], self.open(path)["times"])

    def test_animations_that_are_cut_are_told(self):
        frames = [Image.fromarray(p) for p in self.pictures(3)]
        for ending in ("gif", "webp"):
            whole = self.folder / f"whole.{ending}"
            frames[0].save(whole, save_all=True, append_images=frames[1:], duration=50)
            data = whole.read_bytes()
            self.refused("DATA_LOSS", self.write(f"cut.{ending}", data[:len(data) * 2 // 3]))
            self.refused("INVALID_ARGUMENT", whole, "limit of 2", limits=(10_000, 2))
            self.refused("INVALID_ARGUMENT", whole, "limit of 99", limits=(99,))

    def test_folders_are_clips_in_natural_order(self):
        folder = self.folder / "bilder é"
        folder.mkdir()
        pictures = self.pictures(3)
        for name, picture in zip(("f2.png", "f9.png", "f10.png"), pictures):
            Image.fromarray(picture).save(folder / name)
        (folder / "caption.txt").write_text("no frame")
        (folder / "inner").mkdir()
        info = self.open(folder)
        self.assertEqual(("folder", "", 0, [0, 1, 2]), (info["format"], info["codec"], info["fps"], info["times"]))
        for frame, picture in zip(self.frames(0, 1, 2), pictures):
            np.testing.assert_array_equal(picture, frame)
        self.assertTrue(self.ask("looks", folder)["ok"])
        Image.fromarray(self.pictures(1, (21, 14))[0]).save(folder / "f11.png")
        answer = self.ask("open", folder)
        self.assertEqual("UNSUPPORTED", answer["code"])
        self.assertIn("f11.png: is 21x14, the first frame of its folder is 20x14", answer["error"])
        self.refused("UNSUPPORTED", folder / "inner", "a folder without images")
        self.assertFalse(self.ask("looks", folder / "inner")["ok"])

    def test_a_still_is_a_clip_of_one_frame(self):
        for name in ("one.png", "one.gif", "one.webp"):
            path = self.folder / name
            Image.fromarray(self.pictures(1)[0]).save(path)
            info = self.open(path)
            self.assertEqual((name[4:], [0], 0), (info["format"], info["times"], info["fps"]))
            self.assertEqual((14, 20, 3), self.frames(0)[0].shape)
            self.assertFalse(self.ask("looks", path)["ok"])


@unittest.skipIf(LIBRARY == "-", "built without FFmpeg")
class WithoutLibrary(unittest.TestCase):

    def test_pictures_are_read_without_the_library(self):
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            (root / "bin").mkdir()
            (root / "lib").mkdir()
            tool = root / "bin/clip_tool"
            shutil.copy(TOOL, tool)
            sdk = Path(LIBRARY).parent / "libatelier_sdk.so"
            (root / "lib/libatelier_sdk.so").symlink_to(sdk)
            Image.new("RGB", (4, 4)).save(root / "a.png")
            commands = f"open\t{CLIPS / 'plain.mp4'}\nopen\t{root / 'a.png'}\n"
            first, second = map(json.loads, subprocess.run(
                [tool], input=commands, capture_output=True, text=True, check=True).stdout.splitlines())
            self.assertEqual("ENVIRONMENT", first["code"])
            self.assertIn("tools/setup", first["error"])
            self.assertEqual([0], second["ok"]["times"])
            # A library of another build.
            (root / "lib/libatelier_video.so").symlink_to(sdk)
            first = json.loads(subprocess.run([tool], input=commands, capture_output=True, text=True,
                                              check=True).stdout.splitlines()[0])
            self.assertEqual("ENVIRONMENT", first["code"])
            self.assertIn("another build", first["error"])


if __name__ == "__main__":
    unittest.main()
