"""Registers of the kernels of our own, as they were built, and what follows: threads and bytes in flight."""
import collections
import os
import pathlib
import re
import sys
import unittest

BUILD = pathlib.Path(os.environ["ATELIER_BIN"]).parents[1]
LOGS = sorted((BUILD / "sdk/CMakeFiles/atelier_cuda_kernels.dir").rglob("*.ptxas"))
# Packs of 16 bytes that a lane reads of each row, and rows that it reads from memory: inputs, but neither what all rows
# of a sample share nor what is read once more.
PACKS_AND_ROWS = {"NormModulate": (3, 1), "RmsScale": (3, 1), "RmsGateResidualNormModulate": (3, 2),
                  "NormModulateBackward": (2, 2), "RmsScaleBackward": (2, 2), "RmsGateResidualNormModulateBackward": (2, 3),
                  "GateResidual": (2, 2), "GateResidualBackward": (2, 1), "NormRope": (2, 1), "NormRopeBackward": (2, 2),
                  "Swiglu": (2, 2), "SwigluBackward": (2, 3), "GeluTanh": (2, 1), "GeluTanhBackward": (2, 2),
                  "QuantizeRows": (4, 1), "GeluTanhCodes": (4, 1), "DrawCodes": (8, 0), "DrawPacked": (4, 0), "ScaleSums": (2, 0),
                  "ChannelSums": (2, 1), "ScaleChannels": (2, 1), "ChannelGradientSums": (2, 2), "ChannelGradients": (2, 2),
                  "AdamWCodes": (1, 0)}
# Bytes that are read for each value of what these write.
BYTES_READ = {"DrawCodes": 1, "DrawPacked": 0.5, "ScaleSums": 4}
# What of a kernel's bytes are read, where that is much less than the half that it is of others.
PART_READ = {"DrawPacked": {"Float32": 0.5 / 4.5, "BFloat16": 0.5 / 2.5, "Float16": 0.5 / 2.5}}
# Bytes that a lane reads, where it has eight values of any type: a gradient, a weight and two codes of each.
BYTES_OF_LANE = {"AdamWCodes": {"Float32": 8 * (4 + 4 + 2), "BFloat16": 8 * (2 + 2 + 2), "Float16": 8 * (2 + 2 + 2)}}
GATED = 1  # one row more where a gated residual is part of it
# Lanes of a block: those of a row as wide as Qwen-Image's where they add it up, else those of row_plan.cpp.
WIDTH, USUAL_LANES = 3072, 256
REGISTERS_OF_SM, THREADS_OF_SM, MOST_LANES = 65536, 2048, 512
MOST_KERNELS, MOST_BYTES = 100, 15e6
HOPPER = "sm_90"
LEAST_IN_FLIGHT = 32 * 1024  # on a multiprocessor of it: hides the latency of its memory

Kernel = collections.namedtuple("Kernel", "architecture name element registers")


def kernels():
    """Of all architectures, as ptxas told them while they were built."""
    found, entry = [], None
    for line in "".join(log.read_text() for log in LOGS).splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            entry = match
        elif match := re.search(r"Used (\d+) registers", line):
            functor = re.search(r"INS1_\d+([A-Za-z]+?)INS1_\d+(Float32|BFloat16|Float16)(?:ELb(\d)ELb(\d))?", entry[1])
            name = entry[1]
            if functor:
                name = functor[1] + (" gated" if functor[3] == "1" else "") + (" codes" if functor[4] == "1" else "")
            found.append(Kernel(entry[2], name, functor[2] if functor else "", int(match[1])))
    return found


def lanes_of_block(kernel, packs):
    if "Rope" in kernel.name or not re.search("Norm|Rms|Quantize|GeluTanhCodes", kernel.name):
        return USUAL_LANES
    bytes_of_row = WIDTH * (4 if kernel.element == "Float32" else 2)
    return -(-bytes_of_row // (16 * packs * 32)) * 32


def resident_threads(kernel, lanes):
    """Of one multiprocessor, in blocks of so many lanes; registers are given out by eights."""
    of_block = -(-kernel.registers // 8) * 8 * lanes
    return min(REGISTERS_OF_SM // of_block, THREADS_OF_SM // lanes) * lanes


class Registers(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if not LOGS:
            print("skipped: no CUDA kernels are built")
            sys.exit(77)
        cls.kernels = kernels()

    def test_every_kernel_fits_its_registers_and_the_library_its_limits(self):
        architectures = {kernel.architecture for kernel in self.kernels}
        self.assertTrue(architectures)
        for architecture in architectures:
            of_one = [kernel for kernel in self.kernels if kernel.architecture == architecture]
            self.assertLessEqual(len(of_one), MOST_KERNELS)
            self.assertEqual(len(of_one), len(self.kernels) / len(architectures))
        for kernel in self.kernels:
            self.assertLessEqual(kernel.registers * MOST_LANES, REGISTERS_OF_SM, kernel)
        self.assertLessEqual((BUILD / "lib/libatelier_cuda.so").stat().st_size, MOST_BYTES)

    def test_every_functor_is_known_and_keeps_enough_bytes_in_flight(self):
        named = [kernel for kernel in self.kernels if kernel.element]
        self.assertEqual({kernel.name.split()[0] for kernel in named}, set(PACKS_AND_ROWS))
        print(f"{'kernel':<38} {'element':<9} lanes registers threads KB in flight")
        for kernel in sorted(kernel for kernel in named if kernel.architecture == HOPPER):
            packs, rows = PACKS_AND_ROWS[kernel.name.split()[0]]
            rows += GATED if "gated" in kernel.name else 0
            lanes = lanes_of_block(kernel, packs)
            threads = resident_threads(kernel, lanes)
            bytes_of_pack = BYTES_READ.get(kernel.name, 0) * (4 if kernel.element == "Float32" else 8) or 16 * rows
            of_lane = BYTES_OF_LANE.get(kernel.name, {}).get(kernel.element, packs * bytes_of_pack)
            in_flight = threads * of_lane
            print(f"{kernel.name:<38} {kernel.element:<9} {lanes:>5} {kernel.registers:>9} {threads:>7} "
                  f"{in_flight / 1024:>6.1f}")
            part = PART_READ.get(kernel.name, {}).get(kernel.element, 0.5)
            self.assertGreaterEqual(in_flight, LEAST_IN_FLIGHT * part / 0.5, kernel)


if __name__ == "__main__":
    unittest.main(verbosity=1)
