"""Reads clips that the writers made with other programs: Pillow, PyAV where it is installed, and the boxes of MP4.

usage: clip_writer_test.py IMAGE_TOOL
"""
import json
import struct
import subprocess
import sys
import tempfile
import unittest
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

try:
    import av
except ImportError:
    av = None

TOOL = sys.argv.pop(1) if len(sys.argv) > 1 else None
COMMENT = json.dumps({"parameters": "a cat, \u4e00", "atelier": "{}"})


def scene(width, height, count, seed=0):
    """Frames of something smooth that moves, with a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    for t in range(count):
        planes = [128 + 90 * np.sin((x + 3 * t) / (19 + 5 * c)) * np.cos((y - 2 * t) / (23 + 3 * c)) for c in range(3)]
        noise = rng.normal(0, 2, (height, width, 3))
        yield np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)


def rgb_of(frame):
    """The colours of a 4:2:0 frame by BT.709's formulas, in limited range. PyAV's own conversion is darker by one level."""
    planes = frame.to_ndarray(format="yuv420p").astype(float)
    height, width = frame.height, frame.width
    y, u, v = np.split(planes.ravel(), [height * width, height * width * 5 // 4])
    u, v = ((c.reshape(height // 2, width // 2).repeat(2, 0).repeat(2, 1) - 128) / 224 for c in (u, v))
    y = (y.reshape(height, width) - 16) / 219
    red, blue = y + 1.5748 * v, y + 1.8556 * u
    green = (y - 0.2126 * red - 0.0722 * blue) / 0.7152
    return np.clip(255 * np.stack([red, green, blue], -1), 0, 255)


def boxes(data, begin=0, end=None):
    """Type and content of every box."""
    end = len(data) if end is None else end
    while begin < end:
        size, kind = struct.unpack_from(">I4s", data, begin)
        head = 8
        if size == 1:
            size, head = struct.unpack_from(">Q", data, begin + 8)[0], 16
        yield kind.decode("latin-1"), data[begin + head:begin + size]
        begin += size


def box(data, *path):
    for kind in path:
        data = dict(boxes(data))[kind]
    return data


class ClipWriter(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="atelier_clips_")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, frames, fps=16, comment=COMMENT):
        paths = []
        for i, frame in enumerate(frames):
            paths.append(self.folder / f"in_{i}.png")
            Image.fromarray(frame).save(paths[-1], compress_level=1)
        line = "\t".join(map(str, ["clip", self.folder / name, fps, comment, *paths]))
        answer = self.tool(line)
        self.assertEqual("ok", answer)
        return self.folder / name

    def tool(self, line):
        return subprocess.run([TOOL], input=line + "\n", capture_output=True, text=True, check=True).stdout.strip()

    def read(self, path):
        """Frames as arrays, their times in milliseconds, and what the file says about repeats."""
        with Image.open(path) as clip:
            frames, times = [], []
            for i in range(clip.n_frames):
                clip.seek(i)
                frames.append(np.asarray(clip.convert("RGB")))
                times.append(clip.info["duration"])
            self.assertEqual(0, clip.info["loop"])  # forever
            return frames, times

    def error(self, expected, found):
        return max(np.abs(a.astype(int) - b).mean() for a, b in zip(expected, found, strict=True))

    def test_gif_is_nearer_than_pillows_own(self):
        for size in ((128, 96), (161, 121)):
            frames = list(scene(*size, 5))
            path = self.write("a.gif", frames)
            found, times = self.read(path)
            self.assertEqual([60, 70, 60, 60, 60], times)  # sums to 5 / 16 s, in hundredths
            pillow = [np.asarray(Image.fromarray(f).convert("P", palette=Image.Palette.ADAPTIVE).convert("RGB"))
                      for f in frames]
            self.assertLess(self.error(frames, found), 0.95 * self.error(frames, pillow))
            self.assertLess(self.error(frames, found), 5)
            with Image.open(path) as clip:
                self.assertEqual(COMMENT, clip.info["comment"].decode())

    def test_gif_keeps_few_colours(self):
        frame = np.zeros((20, 30, 3), np.uint8)
        frame[:, :15] = (250, 7, 90)
        found, _ = self.read(self.write("a.gif", [frame, frame[:, ::-1].copy()]))
        np.testing.assert_array_equal(frame, found[0])
        np.testing.assert_array_equal(frame[:, ::-1], found[1])

    def test_webp_is_near_and_says_how_it_was_made(self):
        for size in ((64, 48), (37, 23)):
            frames = list(scene(*size, 5))
            path = self.write("a.webp", frames)
            found, times = self.read(path)
            self.assertEqual([63, 62, 63, 62, 63], times)
            self.assertLess(self.error(frames, found), 3)
            with Image.open(path) as clip:
                exif = clip.getexif().get_ifd(0x8769)
                self.assertEqual(b"ASCII\0\0\0" + COMMENT.encode(), exif[0x9286])

    def test_one_frame_and_no_comment_are_enough(self):
        for name in ("a.gif", "a.webp", "a.mp4"):
            path = self.write(name, scene(32, 32, 1), comment="")
            if name != "a.mp4":
                with Image.open(path) as clip:
                    self.assertEqual((32, 32), clip.size)
                    self.assertNotIn("comment", clip.info)
                    self.assertFalse(clip.getexif())

    def test_text_is_read_back(self):
        expected = "ok atelier={}\tparameters=a cat, \u4e00"
        for name in ("a.gif", "a.webp"):
            path = self.write(name, scene(32, 32, 2))
            self.assertEqual(expected, self.tool(f"text\t{path}").rstrip())
        Image.new("RGB", (8, 8)).save(self.folder / "other.gif", comment=b"made by hand")
        self.assertEqual("ok comment=made by hand", self.tool(f"text\t{self.folder / 'other.gif'}").rstrip())

    def test_mp4_says_what_it_is(self):
        path = self.write("a.mp4", scene(64, 48, 7))
        data = path.read_bytes()
        self.assertEqual(["ftyp", "moov"], [kind for kind, _ in boxes(data)][:2])  # the index comes first
        self.assertIn(COMMENT.encode(), box(data, "moov", "udta"))
        self.assertNotIn(b"Lavf", data)
        track = box(data, "moov", "trak")
        seconds = struct.unpack(">II", box(data, "moov", "mvhd")[4:12])
        self.assertEqual((0, 0), seconds)  # no date
        scale, length = struct.unpack(">II", box(track, "mdia", "mdhd")[12:20])
        self.assertEqual(Fraction(7, 16), Fraction(length, scale))
        stbl = box(track, "mdia", "minf", "stbl")
        sample = box(stbl, "stsd")[8:]
        self.assertEqual(b"avc1", sample[4:8])
        details = dict(boxes(sample[8 + 78:]))
        self.assertEqual(b"nclx" + struct.pack(">HHHB", 1, 1, 1, 0), details["colr"])  # BT.709, limited range
        times = struct.unpack(">III", box(stbl, "stts")[4:16])
        self.assertEqual((1, 7), times[:2])
        self.assertEqual(data, self.write("b.mp4", scene(64, 48, 7)).read_bytes())

    @unittest.skipIf(av is None, "without PyAV")
    def test_mp4_has_the_colours_of_its_frames(self):
        for size, fps, rate in (((64, 48), 16, Fraction(16)), ((37, 23), 29.97, Fraction(2997, 100)),
                                ((96, 64), 24000 / 1001, Fraction(24000, 1001))):
            frames = list(scene(*size, 9))
            with av.open(str(self.write("a.mp4", frames, fps))) as clip:
                stream = clip.streams.video[0]
                self.assertEqual((rate, "yuv420p", COMMENT),
                                 (stream.average_rate, stream.codec_context.pix_fmt, clip.metadata["comment"]))
                found = list(clip.decode(stream))
            self.assertEqual([i / rate for i in range(9)], [frame.pts * frame.time_base for frame in found])
            self.assertEqual({(1, 1)}, {(int(frame.colorspace), int(frame.color_range)) for frame in found})
            width, height = size
            decoded = [rgb_of(frame)[:height, :width] for frame in found]
            self.assertLess(self.error(frames, decoded), 3)
            shift = (np.mean(decoded, 0) - np.mean(frames, 0)).mean((0, 1))
            self.assertLess(np.abs(shift).max(), 0.6)


if __name__ == "__main__":
    unittest.main()
