"""Reads event files and CSV with code of its own, and with TensorBoard's where it is there.

usage: metrics_test.py RUN_TOOL
"""
import csv
import math
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOOL = None


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """Splits a file into records, and checks their checksums."""
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == masked(data[at:at + 8]), "checksum of a length"
        record = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked(record), "checksum of a record"
        yield record
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The fields of a protocol buffer, as (number, value)."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            (value,), at = struct.unpack_from("<d", data, at), at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            assert kind == 5, f"wire type {kind}"
            (value,), at = struct.unpack_from("<f", data, at), at + 4
        yield number, value


def scalars(event):
    """{tag: value} of an Event with a Summary."""
    found = {}
    for number, value in fields(dict(fields(event))[5]):
        assert number == 1
        scalar = dict(fields(value))
        found[scalar[1].decode()] = scalar[2]
    return found


class Metrics(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def write(self, last_step):
        subprocess.run([TOOL, "metrics", self.folder, str(last_step)], check=True)

    def events(self):
        files = sorted((self.folder / "logs").glob("events.out.tfevents.*"))
        return [list(records(f.read_bytes())) for f in files]

    def rows(self):
        with open(self.folder / "metrics.csv", newline="") as file:
            return list(csv.reader(file))

    def test_the_checksum_is_the_known_one(self):
        self.assertEqual(0xE3069283, crc32c(b"123456789"))

    def test_an_event_file_holds_what_was_written(self):
        self.write(0)
        (events,) = self.events()
        first = dict(fields(events[0]))
        self.assertEqual(b"brain.Event:2", first[3])
        self.assertAlmostEqual(time.time(), first[1], delta=60)
        start = dict(fields(events[1]))
        self.assertEqual(1, start[2])
        self.assertEqual({1: 1}, dict(fields(start[7])))
        self.assertEqual([1, 2, 3, 1 << 40], [dict(fields(e))[2] for e in events[2:-1]])
        second = scalars(events[3])
        self.assertEqual({"train/loss", "odd,\"name\"", "lr", "nan"}, set(second))
        self.assertEqual(0.5, second["train/loss"])
        self.assertEqual(struct.unpack("<f", struct.pack("<f", 1e-4))[0], second["lr"])
        self.assertTrue(math.isnan(second["nan"]))
        self.assertAlmostEqual(-1e30, scalars(events[5])["n" * 200], delta=1e24)

    def test_an_event_file_holds_images(self):
        self.write(0)
        (events,) = self.events()
        event = dict(fields(events[-1]))
        self.assertEqual(3, event[2])
        value = dict(fields(dict(fields(event[5]))[1]))
        self.assertEqual(b"samples/0", value[1])
        self.assertEqual({1: 3, 2: 5, 3: 3, 4: b"\x89PNG\0bytes"}, dict(fields(value[4])))
        metadata = dict(fields(value[9]))
        self.assertEqual({1: b"images"}, dict(fields(metadata[1])))
        self.assertEqual(b"a fox", metadata[3])

    def test_a_resumed_run_writes_another_file_that_starts_at_its_step(self):
        self.write(0)
        self.write(2)
        events = self.events()
        self.assertEqual(2, len(events))
        starts = sorted(dict(fields(e[1]))[2] for e in events)
        self.assertEqual([1, 3], starts)

    def test_tensorboard_reads_it(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("tensorboard is not there")
        self.write(0)
        self.write(2)
        board = EventAccumulator(str(self.folder / "logs"))
        board.Reload()
        self.assertEqual([1, 2, 3, 4, 5], [s.step for s in board.Scalars("train/loss")])

    def test_rows_are_what_was_written(self):
        self.write(0)
        rows = self.rows()
        self.assertEqual(["step", "key", "value"], rows[0])
        self.assertEqual(1 + 3 * 4, len(rows))
        found = {(int(step), key): float(value) for step, key, value in rows[1:]}
        self.assertEqual(1.0 / 3, found[3, "train/loss"])
        self.assertEqual(2.0, found[2, "odd,\"name\""])
        self.assertTrue(math.isnan(found[1, "nan"]))

    def test_a_resumed_run_cuts_the_rows_that_it_writes_again(self):
        self.write(0)
        path = self.folder / "metrics.csv"
        path.write_text(path.read_text() + "2,train/lo")  # as a kill leaves it
        self.write(2)
        steps = [int(row[0]) for row in self.rows()[1:]]
        self.assertEqual([s for s in (1, 2, 3, 4, 5) for _ in range(4)], steps)

    def test_a_file_of_others_is_left_alone(self):
        path = self.folder / "metrics.csv"
        path.write_text("epoch,loss\n1,2\n")
        result = subprocess.run([TOOL, "metrics", self.folder, "0"], capture_output=True, text=True)
        self.assertEqual(2, result.returncode)
        self.assertIn("metrics.csv", result.stderr)
        self.assertIn("step,key,value", result.stderr)
        self.assertEqual("epoch,loss\n1,2\n", path.read_text())


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
