"""Runs of the program on tiny models: their folders, their data, and what they leave behind.

CMake's tests find this module by PYTHONPATH.
"""
import json
import math
import pathlib
import struct
import tempfile
import unittest
import zlib

import program

TARGETS = "to_q,to_k,to_v"


class FolderTest(unittest.TestCase):
    """A folder `root` for all tests of a class, and in it a folder `dir` for each test."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=self.root)
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)


class TinyRuns(FolderTest):
    """Runs on the model of examples/tiny_model."""

    denoiser_blocks = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.root / "model"
        program.write_tiny_model(cls.model, denoiser_blocks=cls.denoiser_blocks)
        cls.on_model = dict(plugin="qwen_image", model_paths=json.dumps([str(cls.model)]), device="cpu", threads=1)

    def training(self, name, data, **flags):
        """The flags of a run that writes a loss.csv, in the folder of the test; `flags` come first."""
        return {**self.on_model, **on_data(data), "learning_rate": 1e-3, "enable_csv_log": True,
                "cache_path": self.root / "cache", "output_path": self.dir / name, **flags}

    def write_prompts(self, text):
        """A prompts file in the folder of the test."""
        path = self.dir / "prompts.txt"
        path.write_text(text)
        return path

    def assert_same_state(self, a, b, step):
        """Two runs have the same checkpoint of this step, to the bit."""
        ours, theirs = state_of(a, step), state_of(b, step)
        self.assertTrue(ours)
        self.assertEqual(set(ours), set(theirs))
        self.assertEqual([name for name, value in ours.items() if theirs[name] != value][:3], [])


def on_data(data):
    """The flags that name a folder of write_dataset()."""
    return dict(dataset_base_path=data, dataset_metadata_path=data / "metadata.csv")


# ---- Images ----


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(path, width, height, color_of):
    """An image of 8-bit RGB: color_of(x, y) is a pixel."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in color_of(x, y)) for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" +
                     png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b""))


def png_size(path):
    """Width and height."""
    return struct.unpack_from(">II", path.read_bytes(), 16)


def png_chunks(path):
    """Type and data of every chunk of a PNG file."""
    data, at, chunks = path.read_bytes(), 8, []
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks.append((kind, data[at + 8:at + 8 + length]))
        at += 12 + length
    return chunks


def png_text(path):
    """The texts that a PNG file holds, by their keys."""
    text = {}
    for kind, data in png_chunks(path):
        if kind in (b"tEXt", b"iTXt"):
            key, value = data.split(b"\0", 1)
            text[key.decode()] = value.decode("latin-1") if kind == b"tEXt" else \
                value[2:].split(b"\0", 2)[2].decode()
    return text


def pixels(path):
    """The compressed pixels: equal for equal images."""
    return b"".join(data for kind, data in png_chunks(path) if kind in (b"IHDR", b"IDAT"))


def write_colors(path, width, height, seed):
    """An image whose colors depend on `seed`."""
    write_png(path, width, height, lambda x, y: [(x * 5 + y * 3 * c + seed * 41) % 256 for c in range(3)])


# ---- Data sets ----


def write_dataset(folder, count=6, sizes=((64, 64),)):
    folder.mkdir()
    lines = ["image,prompt"]
    for i in range(count):
        width, height = sizes[i % len(sizes)]
        write_png(folder / f"{i}.png", width, height,
                  lambda x, y, i=i: ((x * 3 + 40 * i) % 256, (y * 2 + 90 * i) % 256, 60 * i % 256))
        lines.append(f'{i}.png,"image number {i}"')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def write_discs(folder, numbers):
    """Hatched discs on a hatched ground, each a little different."""
    folder.mkdir()
    lines = ["image,prompt"]
    for i in numbers:

        def color(x, y, i=i):
            is_inside = (x - 32 - i % 5 * 3)**2 + (y - 32 + i % 7 * 2)**2 < 400
            base = (200, 40 + 10 * (i % 9), 60) if is_inside else (30, 60, 160 - 8 * (i % 8))
            return base if (x + y + 3 * i) // 4 % 2 else tuple(v // 3 for v in base)

        write_png(folder / f"{i}.png", 64, 64, color)
        lines.append(f'{i}.png,"a hatched disc, number {i}"')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


# ---- Tensors ----


def read_header(path):
    """The header of a safetensors file."""
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def tensors(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    values = data_of(path)
    return {name: (entry["dtype"], tuple(entry["shape"]), values[slice(*entry["data_offsets"])])
            for name, entry in read_header(path).items() if name != "__metadata__"}


def data_of(path):
    """Everything behind the header of a safetensors file."""
    data = path.read_bytes()
    return data[8 + struct.unpack_from("<Q", data)[0]:]


def floats(tensor):
    """The numbers of one of tensors()."""
    dtype, _, data = tensor
    assert dtype == "F32", dtype
    return struct.unpack(f"<{len(data) // 4}f", data)


def write_tensors(path, tensors):
    """tensors: name -> (shape, floats)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        values = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def matrices(model):
    """Name -> shape of the denoiser's layers, which LoRAs are made for."""
    return {name.removesuffix(".weight"): meta["shape"]
            for file in sorted((model / "transformer").glob("*.safetensors"))
            for name, meta in read_header(file).items()
            if name.endswith(".weight") and len(meta["shape"]) == 2}


def factors(layer, shape, rank=2, seed=1.0, size=0.3):
    """The two factors of a LoRA's layer, for write_tensors()."""
    out, width = shape
    wave = lambda count, pace: [size * math.sin(seed + pace * i) for i in range(count)]
    return {layer + ".lora_A.weight": ([rank, width], wave(rank * width, 0.71)),
            layer + ".lora_B.weight": ([out, rank], wave(out * rank, 1.37))}


# ---- What a training run leaves ----


def state_of(run, step):
    """Every tensor of a checkpoint."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {(path.name, name): value for path in sorted(folder.glob("*.safetensors"))
            for name, value in tensors(path).items()}


def rows_of(run):
    """The rows of the CSV as they are written: step, name and value."""
    return [line.split(",") for line in (run / "loss.csv").read_text().splitlines()[1:]]


def losses(run, name="train/loss"):
    """Step -> value of one name in the CSV."""
    return {int(step): float(value) for step, key, value in rows_of(run) if key == name}


def validations(run):
    """What was measured on the data that is held out, in the order of the CSV."""
    return [float(value) for _, name, value in rows_of(run) if name.startswith("validation/")]


def weights_of(run):
    """Every tensor of the files of weights that a run wrote."""
    files = {path.name: tensors(path) for path in run.glob("*.safetensors")}
    assert files, run
    return files
