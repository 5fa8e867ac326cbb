"""Compares the image code with Pillow, bit by bit, on images made here.

usage: image_test.py IMAGE_TOOL
"""
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

TOOL = None
FILTERS = {
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS
}


class Tool:

    def __init__(self, path):
        self.process = subprocess.Popen([path],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, *words):
        self.process.stdin.write("\t".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the tool died on {words}")
        return answer.rstrip("\n")

    def close(self):
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code


def noise(width, height, channels=3, seed=0):
    """Smooth gradients and noise, so that both chroma and edges matter."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [np.sin(x / (3 + c)) * 60 + np.cos(y / (4 + c)) * 60 + 128 for c in range(channels)]
    picture = np.stack(planes, -1) + rng.normal(0, 25, (height, width, channels))
    return np.clip(picture, 0, 255).astype(np.uint8)


def over_white(picture):
    white = Image.new("RGB", picture.size, "white")
    rgba = picture.convert("RGBA")
    white.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
    return white


def loaded(path):
    with Image.open(path) as picture:
        picture.load()
        return picture.copy()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bytes(width, height, bits, color_type, rows):
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    raw = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) +
            png_chunk(b"IDAT", zlib.compress(raw)) + png_chunk(b"IEND", b""))


def bmp_bytes(width, height, bits, rows, compression=0, palette=b"", masks=b"", header_size=40):
    """`rows` in the order of the file, from the bottom unless `height` is negative."""
    info = struct.pack("<IiiHHIIiiII", header_size, width, height, 1, bits, compression, len(rows), 0,
                       0,
                       len(palette) // 4, 0)
    info += masks if header_size > 40 else b""
    info += bytes(max(0, header_size - len(info)))
    info += masks if header_size == 40 else b""
    offset = 14 + len(info) + len(palette)
    return struct.pack("<2sIHHI", b"BM", offset + len(rows), 0, 0, offset) + info + palette + rows


def tiff_bytes(tags, data):
    """A little-endian file of one directory; `tags`: tag -> (type, values). `data` is at byte 8."""
    sizes = {1: "B", 3: "H", 4: "I"}
    body, entries = bytearray(data), []
    for tag, (kind, values) in sorted((k, v) for k, v in tags.items() if v):
        packed = struct.pack(f"<{len(values)}{sizes[kind]}", *values)
        if len(packed) > 4:
            packed, at = struct.pack("<I", 8 + len(body)), packed
            body += at
        entries.append(struct.pack("<HHI", tag, kind, len(values)) + packed.ljust(4, b"\0"))
    start = 8 + len(body)
    return (b"II*\0" + struct.pack("<I", start) + bytes(body) + struct.pack("<H", len(entries)) +
            b"".join(entries) + bytes(4))


class PictureTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.tool = Tool(TOOL)
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        code = cls.tool.close()
        cls.folder.cleanup()
        assert code == 0, f"the tool ended with {code}"

    def ask(self, *words):
        answer = self.tool.ask(*words)
        self.assertTrue(answer.startswith("ok"), answer)
        return answer[3:]

    def refused(self, *words):
        answer = self.tool.ask(*words)
        self.assertTrue(answer.startswith("error "), answer)
        return answer

    def decoded(self, path):
        self.ask("decode", path, self.dir / "out.ppm")
        return np.asarray(Image.open(self.dir / "out.ppm"))

    def check(self, path, reference):
        np.testing.assert_array_equal(self.decoded(path), np.asarray(reference.convert("RGB")),
                                      str(path))

    def save(self, name, picture, **options):
        path = self.dir / name
        picture.save(path, **options)
        return path

    def test_jpegs_equal_pillow(self):
        picture = Image.fromarray(noise(67, 45))
        for i, options in enumerate([{
                "subsampling": 0
        }, {
                "subsampling": 1
        }, {
                "subsampling": 2
        }, {
                "progressive": True,
                "subsampling": 2
        }, {
                "quality": 30
        }, {
                "quality": 100
        }]):
            path = self.save(f"a{i}.jpg", picture, **options)
            self.check(path, Image.open(path))
        gray = self.save("gray.jpg", picture.convert("L"))
        self.check(gray, Image.open(gray))
        self.assertTrue(self.ask("probe", gray).startswith("jpeg 67 45 1 8"))

    def test_cmyk_jpegs_have_pillows_colors(self):
        picture = Image.fromarray(noise(40, 30, 4), "CMYK")
        path = self.save("cmyk.jpg", picture, quality=95)
        self.check(path, Image.open(path))
        red = self.save("red.jpg", Image.new("RGB", (16, 16), (230, 20, 30)).convert("CMYK"))
        mean = self.decoded(red).reshape(-1, 3).mean(0)
        np.testing.assert_allclose(mean, [230, 20, 30], atol=4)

    def test_pngs_of_every_kind_equal_pillow(self):
        rgb = Image.fromarray(noise(31, 23))
        for name, picture in {
                "rgb": rgb,
                "l": rgb.convert("L"),
                "one": rgb.convert("1"),
                "palette": rgb.quantize(16),
                "palette256": rgb.quantize(256)
        }.items():
            path = self.save(f"{name}.png", picture)
            self.check(path, Image.open(path))
        self.assertEqual(self.ask("probe", self.dir / "rgb.png"), "png 31 23 3 8 0 0 1")

    def test_interlaced_png_is_read(self):
        picture = Image.fromarray(noise(31, 23))
        plain = self.save("plain.png", picture)
        # Pillow writes no interlaced files: seven passes, each an image, are put together here.
        pixels = np.asarray(picture)
        rows = []
        for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                               (1, 0, 2, 2), (0, 1, 1, 2)]:
            rows += [b"\0" + row.tobytes() for row in pixels[y0::dy, x0::dx]]
        header = struct.pack(">IIBBBBB", 31, 23, 8, 2, 0, 0, 1)
        path = self.dir / "interlaced.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) +
                         png_chunk(b"IDAT", zlib.compress(b"".join(rows))) +
                         png_chunk(b"IEND", b""))
        np.testing.assert_array_equal(self.decoded(path), self.decoded(plain))

    def test_alpha_is_laid_over_white(self):
        rgba = Image.fromarray(noise(31, 23, 4), "RGBA")
        path = self.save("rgba.png", rgba)
        self.check(path, over_white(rgba))
        gray = rgba.convert("LA")
        self.check(self.save("la.png", gray), over_white(gray))
        palette = Image.fromarray(noise(31, 23)).quantize(8)
        path = self.save("trns.png", palette, transparency=3)
        self.check(path, over_white(Image.open(path)))
        lossless = self.save("rgba.webp", rgba, lossless=True, exact=True)
        self.check(lossless, over_white(rgba))

    def test_sixteen_bits_are_rounded_to_eight(self):
        values = np.random.default_rng(1).integers(0, 65536, (9, 13, 3), dtype=np.uint16)
        path = self.dir / "deep.png"
        path.write_bytes(png_bytes(13, 9, 16, 2, [row.astype(">u2").tobytes() for row in values]))
        want = np.floor(values / 257.0 + 0.5).astype(np.uint8)
        np.testing.assert_array_equal(self.decoded(path), want)
        path.write_bytes(
            png_bytes(13, 9, 16, 0, [row.astype(">u2").tobytes() for row in values[..., 0]]))
        np.testing.assert_array_equal(self.decoded(path), np.repeat(want[..., :1], 3, -1))

    def test_webps_equal_pillow(self):
        picture = Image.fromarray(noise(67, 45))
        for i, options in enumerate([{"quality": 80}, {"quality": 20}, {"lossless": True}]):
            path = self.save(f"b{i}.webp", picture, **options)
            self.check(path, Image.open(path))

    def test_the_first_frame_of_an_animation_is_read(self):
        frames = [Image.fromarray(noise(20, 16, seed=s)) for s in range(3)]
        path = self.save("c.webp",
                         frames[0],
                         save_all=True,
                         append_images=frames[1:],
                         lossless=True)
        self.check(path, frames[0])
        self.assertEqual(self.ask("probe", path).split()[6], "1")
        path = self.save("c.png", frames[0], save_all=True, append_images=frames[1:])
        self.check(path, frames[0])
        self.assertEqual(self.ask("probe", path).split()[6], "1")
        self.assertEqual(self.ask("probe", self.save("still.png", frames[0])).split()[6], "0")

    def test_gifs_equal_pillow(self):
        picture = Image.fromarray(noise(37, 21))
        colors = picture.quantize(200)
        for name, image, options in (("plain", colors, {}), ("interlaced", colors, {
                "interlace": True
        }), ("straight", colors, {
                "interlace": False
        }), ("few", picture.quantize(3), {}), ("gray", picture.convert("L"), {}),
                                     ("large", Image.fromarray(noise(300, 200)).quantize(256), {})):
            path = self.save(f"{name}.gif", image, **options)
            self.check(path, loaded(path))
        self.assertEqual(self.ask("probe", self.dir / "plain.gif"), "gif 37 21 1 8 0 0 1")
        path = self.save("clear.gif", colors, transparency=5)
        self.check(path, over_white(loaded(path)))
        self.assertEqual(self.ask("probe", path), "gif 37 21 1 8 1 0 1")
        frames = [Image.fromarray(noise(20, 16, seed=s)).quantize(64) for s in range(3)]
        path = self.save("frames.gif", frames[0], save_all=True, append_images=frames[1:])
        self.check(path, loaded(path))
        self.assertEqual(self.ask("probe", path).split()[6], "1")

    def test_a_gif_frame_may_leave_its_canvas_uncovered_or_outgrow_it(self):
        whole = bytearray(self.save("g.gif", Image.fromarray(noise(12, 9)).quantize(7)).read_bytes())
        transparent = bytearray(
            self.save("t.gif", Image.fromarray(noise(12, 9)).quantize(7), transparency=2).read_bytes())
        for kind, data in (("plain", whole), ("clear", transparent)):
            for name, canvas, place in (("larger", (20, 15), (3, 4)), ("smaller", (5, 4), (0, 0)),
                                        ("beside", (12, 9), (6, 2))):
                changed = bytearray(data)
                changed[6:10] = struct.pack("<HH", *canvas)
                at = changed.index(b",\0\0\0\0" + struct.pack("<HH", 12, 9)) + 1
                changed[at:at + 4] = struct.pack("<HH", *place)
                path = self.dir / f"{kind}_{name}.gif"
                path.write_bytes(changed)
                want = loaded(path)
                self.check(path, over_white(want) if kind == "clear" else want)

    def test_bmps_of_every_kind_equal_pillow(self):
        picture = Image.fromarray(noise(31, 23))
        for name, image in {
                "rgb": picture,
                "l": picture.convert("L"),
                "one": picture.convert("1"),
                "palette": picture.quantize(256)
        }.items():
            path = self.save(f"{name}.bmp", image)
            self.check(path, Image.open(path))
        self.assertEqual(self.ask("probe", self.dir / "rgb.bmp"), "bmp 31 23 3 8 0 0 1")
        rng = np.random.default_rng(7)
        noisy = lambda count: rng.integers(0, 256, count, dtype=np.uint8).tobytes()
        palette = b"".join(noisy(3) + b"\0" for _ in range(16))
        masks = lambda *values: struct.pack(f"<{len(values)}I", *values)
        files = {
            "one": bmp_bytes(13, 5, 1, noisy(4 * 5), palette=palette[:8]),
            "four": bmp_bytes(13, 5, 4, noisy(8 * 5), palette=palette),
            "down": bmp_bytes(13, -5, 4, noisy(8 * 5), palette=palette),
            "five": bmp_bytes(13, 5, 16, noisy(28 * 5)),
            "five_six": bmp_bytes(13, 5, 16, noisy(28 * 5), 3, masks=masks(0xF800, 0x7E0, 0x1F)),
            "true": bmp_bytes(13, 5, 24, noisy(40 * 5)),
            "padded": bmp_bytes(13, 5, 32, noisy(52 * 5)),
            "swapped": bmp_bytes(13, 5, 32, noisy(52 * 5), 3, header_size=56,
                                 masks=masks(0xFF000000, 0xFF0000, 0xFF00, 0)),
            "old": struct.pack("<2sIHHIIHHHH", b"BM", 0, 0, 0, 26, 12, 13, 5, 1, 24) + noisy(40 * 5),
        }
        for name, data in files.items():
            path = self.dir / f"bits_{name}.bmp"
            path.write_bytes(data)
            self.check(path, Image.open(path))
        for order in ((0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF, 0xFF00, 0xFF0000, 0xFF000000)):
            path = self.dir / "alpha.bmp"
            path.write_bytes(
                bmp_bytes(13, 5, 32, noisy(52 * 5), 3, header_size=124, masks=masks(*order)))
            self.check(path, over_white(Image.open(path)))

    def test_runs_of_bmps_equal_pillow(self):
        rng = np.random.default_rng(8)
        for number in range(60):
            bits = (8, 4)[number % 2]
            width, height = (int(v) for v in rng.integers(1, 40, 2))
            rows = bytearray()
            for _ in range(height):
                x = 0
                while x < width:
                    count = int(rng.integers(1, min(12, width - x) + 1))
                    if count >= 3 and rng.random() < 0.5:
                        size = (count + 1) // 2 if bits == 4 else count
                        rows += bytes([0, count]) + rng.integers(
                            0, 256, size, dtype=np.uint8).tobytes() + bytes(size % 2)
                    else:
                        rows += bytes([count, int(rng.integers(256))])
                    x += count
                rows += b"\0\0"
            rows += b"\0\1"
            palette = rng.integers(0, 256, (1 << bits) * 4, dtype=np.uint8).tobytes()
            path = self.dir / "runs.bmp"
            path.write_bytes(bmp_bytes(width, height, bits, bytes(rows), (1, 2)[number % 2], palette))
            self.check(path, Image.open(path))
        # A jump to the right and two rows on, and an end before the image is full.
        path.write_bytes(
            bmp_bytes(6, 4, 8, b"\2\5\0\2\1\2\2\7\0\1", 1,
                      rng.integers(0, 256, 1024, dtype=np.uint8).tobytes()))
        got = self.decoded(path)
        self.assertTrue((got[3, :2] == got[3, 0]).all() and (got[1, 3:5] == got[1, 3]).all())
        self.assertEqual(len(np.unique(got.reshape(-1, 3), axis=0)), 3)

    def test_ppms_equal_pillow(self):
        picture = Image.fromarray(noise(31, 23))
        for name, image in {
                "rgb.ppm": picture,
                "l.pgm": picture.convert("L"),
                "one.pbm": picture.convert("1")
        }.items():
            path = self.save(name, image)
            self.check(path, Image.open(path))
        rng = np.random.default_rng(9)
        bits = " ".join(str(v) for v in rng.integers(0, 2, 35))
        for name, data in {
                "plain bits": f"P1 7 5\n{bits}\n".encode(),
                "joined bits": f"P1\n# by hand\n7 5\n{bits.replace(' ', '')}".encode(),
                "plain gray": b"P2 # a\n7 5 # b\n100\n" +
                              " ".join(map(str, rng.integers(0, 101, 35))).encode(),
                "plain colors": b"P3\n7 5\n13\n" +
                                "\n".join(map(str, rng.integers(0, 14, 105))).encode(),
                "gray to 100": b"P5 7 5 100\n" + rng.integers(0, 101, 35, dtype=np.uint8).tobytes(),
                "colors to 7": b"P6 7 5 7\n" + rng.integers(0, 8, 105, dtype=np.uint8).tobytes(),
                "colors to 999": b"P6 7 5 999\n" +
                                 rng.integers(0, 1000, 105).astype(">u2").tobytes()
        }.items():
            path = self.dir / f"{name}.ppm"
            path.write_bytes(data)
            self.check(path, Image.open(path))

    def test_tiffs_of_every_kind_equal_pillow(self):
        picture = Image.fromarray(noise(67, 45))
        images = {
            "rgb": picture,
            "l": picture.convert("L"),
            "one": picture.convert("1"),
            "palette": picture.quantize(200),
            "cmyk": picture.convert("CMYK")
        }
        for name, image in images.items():
            for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
                path = self.save(f"{name}_{compression}.tif", image, compression=compression)
                self.check(path, Image.open(path))
        for compression in ("group3", "group4"):
            path = self.save(f"{compression}.tif", images["one"], compression=compression)
            self.check(path, Image.open(path))
        for name in ("rgb", "l"):
            path = self.save(f"{name}_jpeg.tif", images[name], compression="jpeg", quality=80)
            self.check(path, Image.open(path))
        self.assertEqual(self.ask("probe", self.dir / "rgb_raw.tif"), "tiff 67 45 3 8 0 0 1")
        rgba = Image.fromarray(noise(31, 23, 4), "RGBA")
        for image in (rgba, rgba.convert("LA")):
            path = self.save("alpha.tif", image, compression="tiff_lzw")
            self.check(path, over_white(Image.open(path)))
        path = self.save("pages.tif", picture, save_all=True, append_images=[picture.rotate(180)])
        self.check(path, picture)
        self.assertEqual(self.ask("probe", path).split()[6], "1")

    def test_tiffs_that_pillow_does_not_write_equal_pillow(self):
        rng = np.random.default_rng(11)
        width, height = 21, 10

        def file(name, bits, samples, photometric, data, **more):
            path = self.dir / f"{name}.tif"
            path.write_bytes(tiff_bytes({
                256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * samples),
                259: (3, [1]), 262: (3, [photometric]), 273: (4, [8]), 277: (3, [samples]),
                278: (4, [height]), 279: (4, [len(data)]),
                **{int(tag[1:]): value for tag, value in more.items()}
            }, data))
            return path

        for bits in (1, 2, 4, 8):
            row = (width * bits + 7) // 8
            data = rng.integers(0, 256, row * height, dtype=np.uint8).tobytes()
            for photometric in (0, 1):
                path = file("gray", bits, 1, photometric, data)
                self.check(path, Image.open(path))
            colors = rng.integers(0, 65536, 3 << bits).tolist()
            path = file("palette", bits, 1, 3, data, t320=(3, colors))
            self.check(path, Image.open(path))
        planes = rng.integers(0, 256, (3, height, width), dtype=np.uint8)
        size = width * height
        path = file("planes", 8, 3, 2, planes.tobytes(), t284=(3, [2]),
                    t273=(4, [8, 8 + size, 8 + 2 * size]), t279=(4, [size] * 3))
        self.check(path, Image.fromarray(planes.transpose(1, 2, 0)))
        rgba = rng.integers(0, 256, size * 4, dtype=np.uint8).tobytes()
        for kind in (1, 2):
            path = file("alpha", 8, 4, 2, rgba, t338=(3, [kind]))
            self.check(path, over_white(Image.open(path)))
        path = file("ignored", 8, 4, 2, rgba, t338=(3, [0]))
        self.check(path, Image.open(path))
        path = file("unsaid", 8, 4, 2, rgba)
        self.check(path, over_white(Image.open(path)))
        # Tiles of 16 by 16 that reach beyond the image.
        pixels = rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
        path = file("tiles", 8, 3, 2, pixels.tobytes(), t273=None, t278=None, t279=None,
                    t322=(4, [16]), t323=(4, [16]), t324=(4, [8, 8 + 768]), t325=(4, [768] * 2))
        self.check(path, Image.open(path))
        # 16 bits are rounded, as those of PNG.
        deep = rng.integers(0, 65536, (height, width, 3), dtype=np.uint16)
        path = file("deep", 16, 3, 2, deep.astype("<u2").tobytes())
        np.testing.assert_array_equal(self.decoded(path),
                                      np.floor(deep / 257.0 + 0.5).astype(np.uint8))
        for name, more in (("floats", dict(t339=(3, [3]))), ("lab", dict(t262=(3, [8])))):
            path = file(name, 8, 3, 2, bytes(size * 3), **more)
            self.assertIn("convert it to 8 bits RGB", self.refused("decode", path, "x"))

    def test_exif_turns_pictures_upright(self):
        picture = Image.fromarray(noise(29, 17))
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            for name, options in {
                    "jpg": {},
                    "png": {},
                    "webp": {
                        "lossless": True
                    },
                    "tif": {}
            }.items():
                path = self.save(f"turn{orientation}.{name}", picture, exif=exif, **options)
                want = ImageOps.exif_transpose(Image.open(path))
                self.check(path, want)
                info = self.ask("probe", path).split()
                self.assertEqual(
                    info[1:3] + info[7:],
                    [str(want.width), str(want.height),
                     str(orientation)])

    def test_resizing_equals_pillow(self):
        rng = np.random.default_rng(2)
        for i in range(240):
            width, height = (int(v) for v in rng.integers(1, 200, 2))
            to_width, to_height = (int(v) for v in rng.integers(1, 200, 2))
            if i % 8 == 0:
                to_width = width
            if i % 8 == 1:
                to_height = height
            picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            path = self.save("in.png", picture)
            name = list(FILTERS)[i % 4]
            self.ask("resize", path, self.dir / "out.ppm", to_width, to_height, name)
            want = picture.resize((to_width, to_height), FILTERS[name])
            np.testing.assert_array_equal(np.asarray(Image.open(self.dir / "out.ppm")),
                                          np.asarray(want),
                                          f"{width}x{height} to {to_width}x{to_height} {name}")

    def test_cover_and_crop_is_as_described(self):
        rng = np.random.default_rng(3)
        for _ in range(60):
            width, height, to_width, to_height = (int(v) for v in rng.integers(8, 160, 4))
            picture = Image.fromarray(noise(width, height))
            path = self.save("in.png", picture)
            self.ask("cover", path, self.dir / "out.ppm", to_width, to_height)
            scale = max(to_width / width, to_height / height)
            scaled = picture.resize((round(width * scale), round(height * scale)),
                                    Image.Resampling.BILINEAR)
            left = int(round((scaled.width - to_width) / 2.0))
            top = int(round((scaled.height - to_height) / 2.0))
            want = picture if (width, height) == (to_width, to_height) else scaled.crop(
                (left, top, left + to_width, top + to_height))
            np.testing.assert_array_equal(np.asarray(Image.open(self.dir / "out.ppm")),
                                          np.asarray(want))

    def test_written_pngs_carry_text_for_pillow(self):
        picture = Image.fromarray(noise(31, 23))
        path = self.save("in.png", picture)
        out = self.dir / "written.png"
        texts = {"parameters": "a cat, Steps: 4", "atelier": '{"prompt": "一只猫 🐱"}', "empty": ""}
        self.ask("encode", path, out, *[w for pair in texts.items() for w in pair], "last", "x")
        read = Image.open(out)
        np.testing.assert_array_equal(np.asarray(read), np.asarray(picture))
        self.assertEqual(dict(read.text), {**texts, "last": "x"})
        want = "".join(f"{k}={v}\t" for k, v in {**texts, "last": "x"}.items())
        self.assertEqual(self.ask("text", out), want)

    def test_text_that_pillow_wrote_is_read(self):
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", "café")
        info.add_text("long", "x" * 5000, zip=True)
        info.add_itxt("itxt", "日本", zip=True)
        path = self.save("pillow.png", Image.new("RGB", (4, 4)), pnginfo=info)
        self.assertEqual(self.ask("text", path), f"parameters=café\tlong={'x' * 5000}\titxt=日本\t")

    def test_every_truncation_is_an_error_that_names_the_file(self):
        picture = Image.fromarray(noise(24, 18, 4), "RGBA")
        files = {
            "t.png": picture,
            "t.webp": picture,
            "t.jpg": picture.convert("RGB"),
            "lossy.webp": picture.convert("RGB"),
            "t.gif": picture.convert("RGB").quantize(16),
            "t.tif": picture,
            "t.bmp": picture.convert("RGB"),
            "t.ppm": picture.convert("RGB")
        }
        for name, image in files.items():
            whole = self.save(name, image, **({
                "lossless": True
            } if name == "t.webp" else {})).read_bytes()
            cut = self.dir / ("cut_" + name)
            for size in list(range(0, min(64, len(whole)))) + list(range(64, len(whole) - 13, 17)):
                cut.write_bytes(whole[:size])
                with self.subTest(name=name, size=size):
                    self.assertIn(str(cut), self.refused("decode", cut, self.dir / "out.ppm"))

    def test_damaged_bytes_never_crash(self):
        rng = np.random.default_rng(4)
        picture = Image.fromarray(noise(24, 18))
        for name in ["d.png", "d.webp", "d.jpg", "d.gif", "d.tif", "lzw.tif", "d.bmp", "d.ppm"]:
            options = {"compression": "tiff_lzw"} if name == "lzw.tif" else {}
            whole = bytearray(self.save(name, picture, **options).read_bytes())
            for _ in range(150):
                broken = bytearray(whole)
                for _ in range(int(rng.integers(1, 6))):
                    broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
                path = self.dir / ("damaged_" + name)
                path.write_bytes(broken)
                self.assertRegex(self.tool.ask("decode", path, self.dir / "out.ppm"),
                                 "^(ok|error )")

    def test_a_huge_size_is_refused_by_its_header(self):
        for name, data in {
                "huge.png": png_bytes(20000, 20000, 8, 2, []),
                "huge.bmp": bmp_bytes(20000, 20000, 24, b""),
                "huge.ppm": b"P6 20000 20000 255\n",
                "huge.gif": b"GIF89a" + struct.pack("<HH", 20000, 20000) + b"\0\0\0",
                "huge.tif": tiff_bytes({256: (4, [20000]), 257: (4, [20000]), 258: (3, [8]),
                                        262: (3, [1]), 273: (4, [8]), 279: (4, [8])}, bytes(8))
        }.items():
            path = self.dir / name
            path.write_bytes(data)
            self.assertIn("more than the limit", self.refused("decode", path, self.dir / "out.ppm"))

    def test_other_files_are_named_for_what_they_are(self):
        for name, data in {
                "AVIF": b"\0\0\0\x20ftypavif\0\0\0\0",
                "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0",
                "JPEG XL": b"\xff\x0a\xfa\x1f",
                "SVG": b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="x"/>',
        }.items():
            path = self.dir / f"{name}.png"
            path.write_bytes(data)
            answer = self.refused("decode", path, self.dir / "out.ppm")
            self.assertIn(f"of the kind {name}, which is not read; convert it to PNG or JPEG", answer)
        pointer = self.dir / "pointer.png"
        pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
        answer = self.refused("decode", pointer, self.dir / "out.ppm")
        self.assertIn("is a git-lfs pointer, not the file itself; run `git lfs pull`", answer)
        text = self.dir / "text.png"
        text.write_bytes(b"<!doctype html><svg/>not found")
        self.assertIn("not a PNG, JPEG, WebP, GIF, TIFF, BMP or PPM image",
                      self.refused("decode", text, self.dir / "out.ppm"))
        empty = self.dir / "empty.png"
        empty.write_bytes(b"")
        self.assertIn("the file is empty", self.refused("decode", empty, self.dir / "out.ppm"))
        self.assertIn("NOT_FOUND", self.refused("probe", self.dir / "absent.png"))
        self.assertIn("a folder", self.refused("probe", self.dir))


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
