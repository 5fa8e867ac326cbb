#!/usr/bin/env python3
"""Compares the program with diffusers and transformers on tiny random models.

Suites are the *_parity_test.py files beside this one, by the part of the name before
`_parity_test`; all without an argument. "wan*" stands for all that begin so. One process runs them all,
because importing the references takes longer than most suites.
"""

import argparse
import fnmatch
import os
import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def main():
    suites = sorted(
        path.name.removesuffix("_parity_test.py") for path in HERE.glob("*_parity_test.py"))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", help="any of: " + ", ".join(suites))
    parser.add_argument("--but", metavar="SUITE", action="append", default=[],
                        help="leaves out a suite; several times: all of them")
    parser.add_argument("-k",
                        metavar="TEXT",
                        action="append",
                        help="only tests whose names hold this text; several times: any of them")
    parser.add_argument("--device",
                        default="cpu",
                        help="where the program computes, cpu or cuda (default cpu); references are on the CPU")
    parser.add_argument("--keep",
                        metavar="DIR",
                        help="keep the models, and each call's files and command, below DIR")
    arguments = parser.parse_args()
    unknown = [each for each in arguments.suite + arguments.but if not fnmatch.filter(suites, each)]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(suites)}")
    chosen = [suite for suite in suites
              if any(fnmatch.fnmatch(suite, each) for each in arguments.suite or "*")
              and not any(fnmatch.fnmatch(suite, each) for each in arguments.but)]
    os.environ["ATELIER_PARITY_DEVICE"] = arguments.device
    if arguments.keep:
        folder = pathlib.Path(arguments.keep).resolve()
        if folder.exists() and any(folder.iterdir()):
            parser.error(f"--keep {folder}: the folder is not empty; name a new one")
        os.environ["ATELIER_PARITY_DIR"] = str(folder)

    sys.path.insert(0, str(HERE))
    started = time.monotonic()
    import atelier
    import compare
    try:
        print("program:", atelier.program())
    except FileNotFoundError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 3
    names = [name + "_parity_test" for name in chosen]
    loader = unittest.TestLoader()
    loader.testNamePatterns = arguments.k and [f"*{text}*" for text in arguments.k]
    tests = loader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    print(
        "\nlargest error relative to the output's scale (images: mean difference, levels of 255):"
    )
    print(compare.report())
    print(f"{result.testsRun} tests in {time.monotonic() - started:.0f} s")
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    # Settings of the references, before they are imported: no network, no progress bars, quiet
    # logs.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    sys.exit(main())
