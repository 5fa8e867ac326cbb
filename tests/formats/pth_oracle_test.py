"""Compares what is read of torch.save()'s archives with what torch.load() reads.

usage: pth_oracle_test.py LIST_PROGRAM [--seeds FOLDER]

With --seeds, the small files are written there as seeds for the fuzzer, and nothing is compared.
"""
import collections
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

try:
    import torch
except ImportError as problem:
    print(f"{problem.name} is not installed: skipped")
    sys.exit(77)

PROGRAM = sys.argv.pop(1)
DTYPES = {
    "F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu
}  # fmt: skip


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def ramp(dtype, *shape):
    count = 1
    for length in shape:
        count *= length
    return (torch.arange(count) % 3).to(torch.float32).to(dtype).reshape(shape)


def views():
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    return {
        "base": base,
        "row": base[1],
        "turned": base.transpose(0, 2),
        "every second": base[:, ::2, 1:],
        "expanded": base[0, 0, 0].expand(4, 3),
        "scalar": torch.tensor(5.0),
        "of shared": base[2, 3, 4],
        "empty": torch.zeros(0, 7),
        "empty part": base[:, :0],
        "one": torch.ones(1, 1)[:, ::1].t(),
    }


def modules():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    tied = torch.nn.Parameter(torch.randn(2, 2))
    parameters = collections.OrderedDict(module.named_parameters())
    return {
        "state": module.state_dict(),
        "parameters": parameters,
        "tied": {"a": tied, "b": tied, "c": tied.detach()},
    }  # fmt: skip


def rewritten(data, change=None, **options):
    """The same entries, packed by Python's zipfile, which calls a function on names and bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", **options) as new:
        for info in old.infolist():
            name, content = (change or (lambda n, c: (n, c)))(info.filename, old.read(info))
            if name is None:
                continue
            with new.open(zipfile.ZipInfo(name) if not options else name, "w", force_zip64=True) as entry:
                entry.write(content)
    return out.getvalue()


def archive(pickled, **more):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n", **more}.items():
            file.writestr("archive/" + name, content)
    return out.getvalue()


GOOD = {
    "dtypes": saved({name: ramp(dtype, 2, 3) for name, dtype in DTYPES.items()}),
    "views": saved(views()),
    **{name: saved(value) for name, value in modules().items()},
    "protocol 4": saved(views(), pickle_protocol=4),
    "state_dict": saved({"state_dict": {"a": torch.ones(2)}}),
    "model_state": saved({"model_state": collections.OrderedDict(a=torch.ones(2))}),
    "module": saved({"module": {"state_dict": {"a": torch.ones(2)}}}),
    "other values": saved({"epoch": 3, "name": "x\u732b", "lr": 0.5, "none": None, "on": True, "big": -2**40,
                           "list": [1, (2, 3)], "a": torch.ones(2), "nested": {"b": torch.ones(3)}}),
    "zip64": rewritten(saved(views())),
    "longest name": saved({"x" * 2**16: torch.ones(2)}),
}  # fmt: skip


class Hostile:

    def __reduce__(self):
        return os.system, ("echo pickles run code",)


def tensor_pickle(*arguments, storage=("storage", b"torch\nFloatStorage\n", "0", "cpu", 4), name="a"):
    """A dict of one tensor, written by hand."""

    def value(v):
        if isinstance(v, tuple):
            return b"(" + b"".join(map(value, v)) + b"t"
        if isinstance(v, bytes):
            return b"c" + v
        if isinstance(v, str):
            return b"X" + struct.pack("<I", len(v.encode())) + v.encode()
        if isinstance(v, bool):
            return b"\x88" if v else b"\x89"
        return b"\x8a\x08" + struct.pack("<q", v)

    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + value(storage) + b"Q" + b"".join(map(value, arguments))
    return b"\x80\x02}" + value(name) + call + b")tRs."


def with_tensor(*arguments, **options):
    return archive(tensor_pickle(*arguments, **options), **{"data/0": bytes(16)})


def flipped(data):
    """As a machine with the bytes of numbers the other way round writes it: float32 only."""

    def change(name, content):
        if name.endswith("byteorder"):
            return name, b"big"
        if "/data/" in name:
            return name, b"".join(content[i:i + 4][::-1] for i in range(0, len(content), 4))
        return name, content

    return rewritten(data, change)


BIG_ENDIAN = flipped(saved({"a": torch.arange(6.0).reshape(2, 3)}))
ONE = saved({"a": torch.ones(4)})
BAD = {
    "os.system": (archive(pickle.dumps({"a": Hostile()}, protocol=2)), "PTH_GLOBAL"),
    "numpy": (archive(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n."), "PTH_GLOBAL"),
    "builtins": (archive(b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R."), "PTH_GLOBAL"),
    "stack global": (archive(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R."), "PTH_GLOBAL"),
    "new object": (archive(b"\x80\x02ccollections\nOrderedDict\n)\x81."), "PTH_OPCODE"),
    "instance": (archive(b"\x80\x02(icollections\nOrderedDict\n."), "PTH_OPCODE"),
    "extension": (archive(b"\x80\x02\x82\x01."), "PTH_OPCODE"),
    "no tensors": (saved({"a": 1}), "PTH_DICT"),
    "a tensor alone": (saved(torch.ones(2)), "PTH_DICT"),
    "a list": (saved([torch.ones(2)]), "PTH_DICT"),
    "holds itself": (archive(b"\x80\x02}q\x00X\x0a\x00\x00\x00state_dicth\x00s."), "PTH_DICT"),
    "empty stack": (archive(b"\x80\x02R."), "PTH_PICKLE"),
    "no mark": (archive(b"\x80\x02t."), "PTH_PICKLE"),
    "no memo": (archive(b"\x80\x02h\x07."), "PTH_PICKLE"),
    "no end": (archive(b"\x80\x02}"), "PTH_PICKLE"),
    "long text": (archive(b"\x80\x02X\xff\xff\xff\xffa."), "PTH_PICKLE"),
    "text of bytes": (archive(b"\x80\x02X\x01\x00\x00\x00\xff."), "PTH_PICKLE"),
    "huge integer": (archive(b"\x80\x02\x8a\x09" + bytes(9) + b"."), "PTH_PICKLE"),
    "many values": (archive(b"\x80\x02(" + b"N" * 1000 + b"lq\x00" +
                            b"ccollections\nOrderedDict\nh\x00\x85R0" * 2), "PTH_PICKLE"),
    "negative offset": (with_tensor(-1, (2, ), (1, ), False), "PTH_TENSOR"),
    "negative stride": (with_tensor(0, (2, ), (-1, ), False), "PTH_TENSOR"),
    "far offset": (with_tensor(3, (2, ), (1, ), False), "PTH_TENSOR"),
    "far stride": (with_tensor(0, (2, ), (2**62, ), False), "PTH_TENSOR"),
    "overflow": (with_tensor(2**62, (2**31, 2**31), (2**31, 1), False), "ST_OVERFLOW"),
    "few bytes many times": (with_tensor(0, (2**40, ), (0, ), False), "PTH_TENSOR"),
    "axes": (with_tensor(0, (2, ), (1, 1), False), "PTH_TENSOR"),
    "many axes": (with_tensor(0, (1, ) * 70, (1, ) * 70, False), "PTH_TENSOR"),
    "long storage": (with_tensor(0, (2, ), (1, ), False,
                                 storage=("storage", b"torch\nFloatStorage\n", "0", "cpu", 5)), "PTH_TENSOR"),
    "other storage": (with_tensor(0, (2, ), (1, ), False,
                                  storage=("module", b"torch\nFloatStorage\n", "0", "cpu", 4)), "PTH_TENSOR"),
    "path": (with_tensor(0, (2, ), (1, ), False,
                         storage=("storage", b"torch\nFloatStorage\n", "../../../etc/passwd", "cpu", 4)),
             "PTH_STORAGE"),
    "long name": (with_tensor(0, (2, ), (1, ), False, name="x" * (2**16 + 1)), "PTH_TENSOR"),
    "deflated": (rewritten(ONE, compression=zipfile.ZIP_DEFLATED), "ZIP_COMPRESSED"),
    "no pickle": (rewritten(ONE, lambda n, c: (None if n.endswith("data.pkl") else n, c)), "PTH_ARCHIVE"),
    "no storage": (rewritten(ONE, lambda n, c: (None if "/data/" in n else n, c)), "PTH_STORAGE"),
    "byte order": (rewritten(ONE, lambda n, c: (n, b"middle" if n.endswith("byteorder") else c)), "PTH_ARCHIVE"),
    "script": (archive(b"\x80\x02}.", **{"constants.pkl": b""}), "PTH_SCRIPT"),
    "cut": (ONE[:-30], "ZIP_END"),
    "cut in the middle": (ONE[:len(ONE) // 2], "ZIP_END"),
    "empty archive": (b"PK\x05\x06" + bytes(18), "PTH_ARCHIVE"),
}  # fmt: skip


class PthTest(unittest.TestCase):

    def setUp(self):
        self.holder = tempfile.TemporaryDirectory(prefix="atelier_pth_")
        self.addCleanup(self.holder.cleanup)

    def lists(self, files):
        paths = []
        for number, data in enumerate(files):
            paths.append(pathlib.Path(self.holder.name) / f"{number}.pth")
            paths[-1].write_bytes(data)
        result = subprocess.run([PROGRAM, *paths], capture_output=True, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    @staticmethod
    def tensor(data, entry):
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[entry["begin"]:entry["end"]]) or bytearray(16), dtype=torch.uint8)
        flat = flat.view(dtype)
        if 0 in entry["shape"]:
            return torch.zeros(entry["shape"], dtype=dtype)
        if entry["strides"]:
            return flat.as_strided(entry["shape"], entry["strides"])
        return flat.reshape(entry["shape"])

    @staticmethod
    def expected(data):
        value = torch.load(io.BytesIO(data), weights_only=False)  # of this file alone
        while len(value) == 1 and isinstance(next(iter(value.values())), dict):
            value = next(iter(value.values()))
        return {name: tensor.detach() for name, tensor in value.items() if torch.is_tensor(tensor)}

    def test_tensors_are_those_of_torch_load(self):
        for (name, data), listed in zip(GOOD.items(), self.lists(GOOD.values())):
            with self.subTest(name):
                self.assertNotIn("tag", listed, listed)
                self.assertFalse(listed["big_endian"])
                expected = self.expected(data)
                self.assertEqual(sorted(expected), [entry["name"] for entry in listed["tensors"]])
                for entry in listed["tensors"]:
                    wanted, got = expected[entry["name"]], self.tensor(data, entry)
                    self.assertEqual((wanted.dtype, wanted.shape), (got.dtype, got.shape), entry)
                    self.assertEqual(wanted.contiguous().flatten().view(torch.uint8).tolist(),
                                     got.contiguous().flatten().view(torch.uint8).tolist(), entry)

    def test_tensors_in_order_have_no_strides(self):
        (listed,) = self.lists([GOOD["views"]])
        strided = {entry["name"] for entry in listed["tensors"] if entry["strides"]}
        self.assertEqual(strided, {"turned", "every second", "expanded"})

    def test_the_byte_order_is_told(self):
        (listed,) = self.lists([BIG_ENDIAN])
        self.assertTrue(listed["big_endian"])
        self.assertEqual([entry["name"] for entry in listed["tensors"]], ["a"])

    def test_what_is_no_checkpoint_is_refused(self):
        for (name, (data, tag)), listed in zip(BAD.items(), self.lists([data for data, _ in BAD.values()])):
            with self.subTest(name):
                self.assertEqual(tag, listed.get("tag"), listed)
                self.assertTrue(listed["hint"] or tag.startswith("ST_"), listed)
        (listed,) = self.lists([BAD["os.system"][0]])
        self.assertIn("system", listed["message"])

    def test_damaged_files_are_refused_or_read_as_torch_reads_them(self):
        rng = random.Random(1)
        files = []
        for data in (ONE, GOOD["views"], BIG_ENDIAN):
            for _ in range(150):
                changed = bytearray(data)
                for _ in range(rng.randint(1, 3)):
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                files.append(bytes(changed))
        for data, listed in zip(files, self.lists(files)):
            for entry in listed.get("tensors", []):
                self.assertLessEqual(entry["begin"], entry["end"])
                self.assertLessEqual(entry["end"], len(data))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--seeds":
        folder = pathlib.Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in {**GOOD, "big endian": BIG_ENDIAN, **{n: d for n, (d, _) in BAD.items()}}.items():
            (folder / name.replace(" ", "_").replace(".", "_")).write_bytes(data)
        sys.exit(0)
    unittest.main()
