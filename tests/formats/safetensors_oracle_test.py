"""Compares the header parser with the reference implementation on mutated files.

usage: safetensors_oracle_test.py VERDICT_PROGRAM [--mutants N] [--seed N]

Every file that one side takes and the other refuses must belong to one of the eight cases in which ours is
stricter, and ours must never take a file that the reference refuses.
"""
import argparse
import collections
import json
import random
import struct
import subprocess
import sys

try:
    from safetensors import deserialize
except ImportError:
    print("safetensors is not installed: skipped")
    sys.exit(77)

STRICTER = {
    "ST_HEADER_START", "ST_DUPLICATE_NAME", "ST_DUPLICATE_METADATA", "ST_METADATA_NULL",
    "ST_ENTRY_POSITIONAL", "ST_DTYPE_FORM", "ST_DIMENSION", "ST_RANK",
}  # fmt: skip
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
NUMBERS = [
    "0", "1", "2", "3", "4", "8", "-0", "-1", "0.0", "1e0", "01", "1.5", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "4294967296", "1e400", "null",
    "true", '"1"', "[]", "{}", "NaN",
]  # fmt: skip
PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b" ", b"\n", b"\t", b"\0", b"\\", b"\\u0061", b"\\ud800",
    b"\\ud83d\\ude00", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"null", b"//", b'"a"',
    b'"a":', b'"__metadata__":', b'"dtype":', b'"shape":', b'"data_offsets":', b'"x":1,', b'"a":"b",',
    b'{"U8":null}', b'{"U8":[]}', b'["U8",[1],[0,1]]', b"[[[[]]]]", b"\x0b", b"\x7f",
]  # fmt: skip


def product(values):
    total = 1
    for value in values:
        total *= value
    return total


def make_tree(rng):
    """A valid header as text, and the bytes of data that it wants."""
    at = 0
    entries = []
    for i in range(rng.randrange(0, 5)):
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 2, 3, 4, 5]) for _ in range(rng.randrange(0, 4))]
        if rng.random() < 0.02:
            shape = [1] * rng.choice([63, 64, 65, 66])
        if rng.random() < 0.02:
            shape = rng.choice([[0, 2**63], [2**63, 0], [2**63 - 1, 0], [0, 2**62, 4]])
        bits = product(shape) * BITS[dtype]
        size = bits // 8
        name = rng.choice(["a", "b", "w.0", "é", "", "\\n", "\\u0061", "c"]) + rng.choice(["", str(i)])
        fields = [
            ("dtype", rng.choice(['"%s"' % dtype] * 30 + ['{"%s":null}' % dtype])),
            ("shape", "[" + ",".join(map(str, shape)) + "]"),
            ("data_offsets", "[%d,%d]" % (at, at + size)),
        ]
        if rng.random() < 0.05:
            fields.append(("x", rng.choice(['{"y":1,"y":2}', "[1,[2]]", "null", "-1.5e3", '"z"'])))
            if rng.random() < 0.3:
                fields.append(fields[-1])
            if rng.random() < 0.3:
                depth = rng.choice([30, 124, 125, 126, 127])
                fields.append(("deep", "[" * depth + "]" * depth))
        rng.shuffle(fields)
        body = "{" + ",".join('"%s":%s' % field for field in fields) + "}"
        if rng.random() < 0.02:
            body = "[%s]" % ",".join(dict(fields)[k] for k in ("dtype", "shape", "data_offsets"))
        entries.append('"%s":%s' % (name, body))
        at += size
    if rng.random() < 0.4:
        entries.append('"__metadata__":' + rng.choice(
            ['{}', '{"k":"v"}', '{"k":"v","k":"w"}', '{"\\u006b":"v","k":"w"}', "null", '{"k":1}', "[]"]))
    rng.shuffle(entries)
    text = "{" + ",".join(entries) + "}"
    if rng.random() < 0.05:
        text += " " * rng.randrange(1, 9)
    if rng.random() < 0.03:
        text = rng.choice([" ", "\n", "\t ", "\r"]) + text
    if rng.random() < 0.02:
        text += rng.choice(["\n", "\t", "\r\n", "\0", "{}", "}"])
    return text.encode(), at


def mutate(rng, header, data):
    header = bytearray(header)
    prefix_change = 0
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        kind = rng.randrange(8)
        at = rng.randrange(len(header) + 1)
        if kind == 0 and at < len(header):
            header[at] = rng.randrange(256)
        elif kind == 1:
            del header[at : at + rng.randrange(1, 6)]
        elif kind == 2:
            header[at:at] = rng.choice(PIECES)
        elif kind == 3:
            digits = [i for i, byte in enumerate(header) if 48 <= byte <= 57]
            if digits:
                at = rng.choice(digits)
                header[at : at + 1] = rng.choice(NUMBERS).encode()
        elif kind == 4:
            end = min(len(header), at + rng.randrange(1, 40))
            header[at:at] = header[at:end]
        elif kind == 5:
            data = max(0, data + rng.choice([-1, 1, 7, -8, 4096]))
        elif kind == 6:
            prefix_change = rng.choice([-1, 1, 2, -8, 2**32, 10**8, 2**63])
        elif kind == 7:
            digits = [i for i, byte in enumerate(header) if 48 <= byte <= 57]
            if digits:
                header[rng.choice(digits)] = rng.randrange(48, 58)
    length = (len(header) + prefix_change) % 2**64
    file = struct.pack("<Q", length) + bytes(header) + bytes(data)
    if rng.random() < 0.02:
        file = file[: rng.randrange(len(file) + 1)]
    return file


def fixed_cases():
    """Edges that chance rarely meets."""
    entry = '"dtype":"U8","shape":[1],"data_offsets":[0,1]'
    for depth in (124, 125, 126, 127, 128):
        yield '{"a":{%s,"x":%s%s}}' % (entry, "[" * depth, "]" * depth), 1
        yield '{"a":{%s,"x":%s1%s}}' % (entry, '{"y":' * depth, "}" * depth), 1
    for number in NUMBERS:
        yield '{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % number, 1
        yield '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,%s]}}' % number, 1
        yield '{"a":{"dtype":"U8","shape":[1],"data_offsets":[%s,1]}}' % number, 1
        yield '{"a":{%s,"x":%s}}' % (entry, number), 1
    for dtype, bits in BITS.items():
        for count in range(9):
            size = count * bits // 8
            yield json.dumps({"t": {"dtype": dtype, "shape": [count], "data_offsets": [0, size]}}), size
    # Nine tensors that fill 2^64 - 1 bytes exactly: the sum with the header wraps.
    parts, at = [], 0
    for i in range(9):
        size = (2**64 - 1) // 9 + (1 if i < (2**64 - 1) % 9 else 0)
        parts.append('"t%d":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}' % (i, size, at, at + size))
        at += size
    yield "{" + ",".join(parts) + "}", 0
    for dims in ([2**63, 4, 0], [0, 2**63, 4], [2**32, 2**32], [2**62, 4, 0], [2**61, 8]):
        yield '{"a":{"dtype":"U8","shape":%s,"data_offsets":[0,0]}}' % json.dumps(dims), 0
        yield '{"a":{"dtype":"F64","shape":%s,"data_offsets":[0,0]}}' % json.dumps(dims), 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mutants", type=int, default=40000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    files = [b"", b"\0" * 7, b"\0" * 8]
    for text, data in fixed_cases():
        files.append(struct.pack("<Q", len(text.encode())) + text.encode() + bytes(data))
    while len(files) < options.mutants:
        header, data = make_tree(rng)
        for _ in range(4):
            files.append(mutate(rng, header, data))

    stream = b"".join(struct.pack("<Q", len(file)) + file for file in files)
    result = subprocess.run([options.program], input=stream, stdout=subprocess.PIPE, check=True)
    ours = result.stdout.decode().split()
    if len(ours) != len(files):
        sys.exit(f"{len(ours)} verdicts for {len(files)} files")

    tags = collections.Counter(ours)
    stricter = collections.Counter()
    wrong = []
    for file, verdict in zip(files, ours):
        try:
            deserialize(file)
            reference = "accept"
        except Exception as error:  # the reference raises one type for everything
            reference = str(error)
        if (reference == "accept") == (verdict == "accept"):
            continue
        if reference == "accept" and verdict in STRICTER:
            stricter[verdict] += 1
        else:
            wrong.append((file[:300], verdict, reference[:160]))
    print(f"{len(files)} files, {tags['accept']} accepted, {len(tags)} verdicts, stricter: {dict(stricter)}")
    print(dict(tags))
    for file, verdict, reference in wrong[:10]:
        print(f"DIFFERS: {file!r}\n  ours: {verdict}\n  reference: {reference}")
    missing = STRICTER - set(stricter)
    if missing:
        print(f"not reached: {sorted(missing)}")
    sys.exit(1 if wrong or missing or tags["accept"] < len(files) // 50 else 0)


main()
