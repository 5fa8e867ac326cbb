"""Registers of the kernels of our own, as they were built, and what follows: threads and bytes in flight."""
import collections
import os
import pathlib
import re
import sys
import unittest

BUILD = pathlib.Path(os.environ["ATELIER_BIN"]).parents[1]
LOGS = sorted((BUILD / "sdk/CMakeFiles/atelier_cuda_kernels.dir").rglob("*.ptxas"))
# Rows that a kernel reads; every lane has 16 bytes of each.
INPUTS = {"NormModulate": 1, "RmsScale": 1, "RmsGateResidualNormModulate": 2, "NormModulateBackward": 2,
          "RmsScaleBackward": 2, "RmsGateResidualNormModulateBackward": 3, "GateResidual": 2, "GateResidualBackward": 1,
          "NormRope": 2, "NormRopeBackward": 4, "Swiglu": 2, "SwigluBackward": 3, "GeluTanh": 1, "GeluTanhBackward": 2}
GATED = 1  # one more where a gated residual is part of it
REGISTERS_OF_SM, THREADS_OF_SM, MOST_LANES = 65536, 2048, 512
MOST_KERNELS, MOST_BYTES = 100, 15e6
# 32 KB hide the latency of a Hopper GPU's memory; no kernel is to fall below what the backward passes of norms have.
LEAST_IN_FLIGHT = 12 * 1024

Kernel = collections.namedtuple("Kernel", "architecture name element packs registers")


def kernels():
    """Of all architectures, as ptxas told them while they were built."""
    found, entry = [], None
    for line in "".join(log.read_text() for log in LOGS).splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            entry = match
        elif match := re.search(r"Used (\d+) registers", line):
            functor = re.search(r"INS1_\d+([A-Za-z]+?)INS1_\d+(Float32|BFloat16|Float16)E(?:Li(\d))?(?:ELb(\d))?", entry[1])
            name = functor[1] + (" gated" if functor[4] == "1" else "") if functor else entry[1]
            found.append(Kernel(entry[2], name, functor[2] if functor else "", int(functor[3] or 1) if functor else 1,
                                int(match[1])))
    return found


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
        self.assertEqual({kernel.name.split()[0] for kernel in named}, set(INPUTS))
        print(f"{'kernel':<38} {'element':<9} packs registers threads KB in flight")
        for kernel in sorted(k for k in named if k.architecture == max(k.architecture for k in named)):
            lanes = 384 if kernel.packs == 1 else MOST_LANES  # of width 3072 in 16 bits, and of the widest
            threads = resident_threads(kernel, lanes)
            inputs = INPUTS[kernel.name.split()[0]] + (GATED if kernel.name.endswith("gated") else 0)
            in_flight = threads * 16 * inputs * kernel.packs
            print(f"{kernel.name:<38} {kernel.element:<9} {kernel.packs:>5} {kernel.registers:>9} {threads:>7} "
                  f"{in_flight / 1024:>6.1f}")
            self.assertGreaterEqual(in_flight, LEAST_IN_FLIGHT, kernel)


if __name__ == "__main__":
    unittest.main(verbosity=1)
