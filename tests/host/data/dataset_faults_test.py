"""Plants faults in a dataset of 10,000 rows: all are found in one pass, each in one line.

usage: dataset_faults_test.py DATASET_TOOL
"""
import io
import json
import os
import sys
import unittest

import numpy as np
from dataset_tool import DatasetTest  # first: it makes image_test importable
from PIL import Image
from image_test import noise, png_bytes

ROWS = 10_000
EXTRA = ["edit_image", "steps", "scale", "tiled"]


def encoded(kind, width=96, height=64, seed=0):
    out = io.BytesIO()
    Image.fromarray(noise(width, height, seed=seed)).save(out, kind)
    return out.getvalue()


class FaultyDataset:
    """Rows of a jsonl file with files of their own; faults take a row each."""

    def __init__(self, folder):
        self.dir = folder
        self.rows = {}
        self.faults = {}  # line: what its problem says
        for i in range(4):
            (folder / f"good{i}.png").write_bytes(encoded("png", seed=i))
        (folder / "mask.png").write_bytes(encoded("png", 48, 32))

    def row(self, line, **values):
        row = {
            "image": f"good{line % 4}.png",
            "prompt": f"caption {line}",
            "edit_image": ["good0.png", "good1.png"],
            "steps": 4,
            "scale": 1.5,
            "tiled": False,
            **values
        }
        return {key: value for key, value in row.items() if value is not ...}

    def plant(self, says, **values):
        """A row with other values; ... takes a value out."""
        line = self.next_line()
        self.faults[line] = says
        self.rows[line] = self.row(line, **values)

    def plant_file(self, says, name, content, column="image"):
        name = f"{self.next_line()}_{name}"
        (self.dir / name).write_bytes(content)
        self.plant(says, **{column: [name] if column == "edit_image" else name})

    def plant_text(self, says, text):
        line = self.next_line()
        self.faults[line] = says
        self.rows[line] = text

    def next_line(self):
        return 17 + 150 * len(self.faults)

    def write(self, rows):
        path = self.dir / "metadata.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for line in range(1, rows + 1):
                row = self.rows.get(line, None) or self.row(line)
                file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
        return path


def plant_all(data):
    jpeg, png, webp = (encoded(kind) for kind in ["jpeg", "png", "webp"])
    # Files.
    data.plant("No such file", image="none.png")
    data.plant("did you mean good1.png?", image="GOOD1.jpg")
    data.plant("there is no folder", image="nowhere/a.png")
    data.plant("write paths with /", image="sub\\a.png")
    (data.dir / "folder.png").mkdir()
    data.plant("no regular file", image="folder.png")
    os.mkfifo(data.dir / "pipe.png")
    data.plant("no regular file", image="pipe.png")
    (data.dir / "dangling.png").symlink_to("gone.png")
    data.plant("a link to what is not there", image="dangling.png")
    data.plant("name too long", image="x" * 300 + ".png")
    (data.dir / "caf\u00e9.png").write_bytes(png)
    data.plant("another Unicode form", image="cafe\u0301.png")
    data.plant("is an empty path", image="")
    data.plant("holds a NUL byte", image="a\0.png")
    data.plant("is a web address", image="https://example.org/a.png")
    # Contents.
    data.plant_file("the file is empty", "empty.png", b"")
    data.plant_file("not a PNG, JPEG, WebP, GIF, TIFF, BMP or PPM", "text.png", b"<html>not found</html>")
    data.plant_file("of the kind HEIC, which is not read", "a.heic", b"\0\0\0\x18ftypheic\0\0\0\0")
    data.plant_file("is a git-lfs pointer", "lfs.png",
                    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    for kind in ("gif", "tiff", "bmp", "ppm"):
        whole = encoded(kind)
        data.plant_file("damaged or cut short", f"cut.{kind}", whole[:len(whole) * 2 // 3])
    data.plant_file("damaged or cut short", "cut.jpg", jpeg[:len(jpeg) * 2 // 3])
    data.plant_file("damaged or cut short", "head.jpg", jpeg[:100])
    data.plant_file("damaged or cut short", "cut.png", png[:len(png) * 2 // 3])
    data.plant_file("damaged or cut short", "end.png", png[:-12])
    data.plant_file("damaged or cut short", "head.png", png[:20])
    data.plant_file("damaged or cut short", "cut.webp", webp[:len(webp) * 2 // 3])
    data.plant_file("damaged or cut short", "crc.png", png[:20] + b"\1" + png[21:])
    data.plant_file("damaged or cut short", "zero.png", png_bytes(0, 10, 8, 2, []))
    data.plant_file("more than the limit", "huge.png", png_bytes(20_000, 20_000, 8, 2, []))
    data.plant_file("too few to train on", "small.png", encoded("png", 40, 15))
    # Values.
    data.plant("[prompt]: nothing is given", prompt=...)
    data.plant("[prompt]: nothing is given", prompt=None)
    data.plant("[prompt]: 12 is no text", prompt=12)
    data.plant("[image]: nothing is given", image=...)
    data.plant("is no path", image=3)
    data.plant("is no path", image={"path": "a.png"})
    data.plant("2 files are given, one is expected", image=["good0.png", "good1.png"])
    data.plant("0 files are given", image=[])
    data.plant("is no list of paths", image="[good0.png]")
    data.plant("[edit_image]: nothing is given", edit_image=...)
    data.plant("at least one is expected", edit_image=[])
    data.plant("[edit_image]", edit_image=["good0.png", "none.png"])
    data.plant("is no path and no list", edit_image=["good0.png", 7])
    data.plant_file("[edit_image]", "damaged.png", png[:60], "edit_image")
    data.plant("is no whole number", steps=1.5)
    data.plant("is no whole number", steps="four")
    data.plant("is no number", scale="wide")
    data.plant("is no truth value", tiled="perhaps")
    # Masks.
    data.plant("[mask]", mask="none.png")
    data.plant_file("[mask]", "damaged.png", png[:60], "mask")
    data.plant_file("the mask is 64x64, the image 96x64", "square.png", encoded("png", 64, 64),
                    "mask")
    data.plant("one is expected", mask=["mask.png", "mask.png"])
    # Syntax.
    data.plant_text("a list, an object is expected", "[1, 2]")
    data.plant_text("a text, an object is expected", '"good0.png"')
    data.plant_text("", '{"image": "good0.png", "prompt": }')
    data.plant_text("", '{"image": "good0.png", "prompt": "x"')
    data.plant_text("", '{"image": "good0.png", "scale": NaN}')
    data.plant_text("", "{'image': 'good0.png'}")
    data.plant_text("given twice", '{"image": "good0.png", "image": "good1.png"}')
    data.plant_text("", '{"prompt": "\\ud800"}')
    data.plant_text("", '{"prompt": ' + "[" * 100 + "]" * 100 + "}")
    data.plant_text("", '{"prompt": "x"} {"prompt": "y"}')
    data.plant_text("", "image,prompt")
    data.plant_file("damaged or cut short", "tail.jpg", jpeg[:-2])
    data.plant_file("damaged or cut short", "riff.webp", webp[:-2])


class FaultsTest(DatasetTest):

    def test_all_planted_faults_are_found_in_one_pass(self):
        data = FaultyDataset(self.dir)
        plant_all(data)
        self.assertEqual(len(data.faults), 65)
        path = data.write(ROWS)
        result = self.tool.open(self.dir, metadata=str(path), extra_inputs=EXTRA)
        self.assertEqual(result["items"], ROWS - 65)
        problems = {}
        for line in result["problems"]:
            self.assertLessEqual(len(line.encode()), 500, line)
            self.assertTrue(line.isprintable(), repr(line))
            place = line.split(f"{path}:", 1)[1]
            number = int(place[:len(place) - len(place.lstrip("0123456789"))])
            self.assertNotIn(number, problems, line)
            problems[number] = line
        self.assertEqual(list(problems), sorted(data.faults))  # in the order of the rows
        for number, says in data.faults.items():
            self.assertIn(says, problems[number])

    def test_what_does_not_fit_is_counted_by_kind(self):
        data = FaultyDataset(self.dir)
        plant_all(data)
        path = data.write(ROWS)
        result = self.tool.open(self.dir, metadata=str(path), extra_inputs=EXTRA, max_errors=20)
        self.assertEqual(len(result["problems"]), 21)
        self.assertIn("45 more (", result["problems"][-1])
        self.assertIn("missing files: ", result["problems"][-1])

    def test_damage_inside_a_picture_is_found_by_decoding(self):
        rng = np.random.default_rng(1)
        png = bytearray(encoded("png"))
        png[len(png) // 2] ^= 0xff
        (self.dir / "a.png").write_bytes(png)
        (self.dir / "b.png").write_bytes(encoded("png"))
        (self.dir / "tail.png").write_bytes(encoded("png", seed=1) + rng.bytes(100))
        (self.dir / "tail.jpg").write_bytes(encoded("jpeg", seed=2) + rng.bytes(100))
        rows = [{"image": name, "prompt": "x"} for name in sorted(os.listdir(self.dir))]
        path = self.dir / "metadata.json"
        path.write_text(json.dumps(rows))
        self.assertEqual(self.tool.open(self.dir, metadata=str(path))["problems"], [])
        problems = self.tool.open(self.dir, metadata=str(path), decode_all=True)["problems"]
        self.assertEqual(len(problems), 1)
        self.assertIn("metadata.json:row 1 [image]", problems[0])

    def test_ten_thousand_files_are_checked(self):
        jpegs = [encoded("jpeg", 64, 48, seed) for seed in range(8)]
        for i in range(ROWS):
            (self.dir / f"{i:05}.jpg").write_bytes(jpegs[i % 8][:2] + b"\xff\xfe\0\x0a%08d" % i +
                                                   jpegs[i % 8][2:])
            (self.dir / f"{i:05}.txt").write_text(f"caption {i}")
        result = self.tool.open(self.dir)
        self.assertEqual((result["problems"], result["items"]), ([], ROWS))
        self.assertEqual(result["warnings"], [])
        print(f"{ROWS} images with captions checked in {result['seconds']:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
