#!/usr/bin/env python3
"""Plugins that end the process, take all of its time or throw: the program tells it in one line."""

import pathlib
import tempfile
import time
import unittest

import program

PLUGIN = program.PROGRAM.parent.parent / "tests/fake_plugins/hostile_plugin.so"
COMMANDS = {
    "show": ["plugins", "show", PLUGIN],
    "check": ["check-plugin", PLUGIN],
    "in process": ["check-plugin", "--in_process", PLUGIN],
    "generate": ["generate", "--plugin", PLUGIN, "--prompt", "x", "--model_paths", '["/none"]'],
    "train": ["train", "--plugin", PLUGIN, "--model_paths", '["/none"]'],
}
ENDS = {
    "exit": "it ends the process with exit()",
    "quick_exit": "it ends the process with exit()",
    "_exit": "it ends the process with exit code 0",
    "abort": "it ends the process (Aborted)",
    "stack": "it ends the process (Segmentation fault)",
    "memory": "it throws",
    "throw": "it throws an exception that is not a std::exception",
    "throw std": 'it throws "a bad"',
}


class HostilePluginsTest(unittest.TestCase):

    def run_with(self, command, hostile, **environment):
        began = time.monotonic()
        result = program.run(*COMMANDS[command], HOSTILE=hostile, **environment)
        self.assertLess(time.monotonic() - began, 15)
        return result

    def check_told(self, result, says, command):
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        # Mistakes of generate and train that have nothing to do with the plugin are told beside it.
        lines = [line for line in result.stderr.splitlines() if "hostile_plugin.so" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(says, lines[0])
        self.assertNotIn("report it", result.stderr)
        self.assertEqual("1 failed" in result.stdout, command == "check", result.stdout)

    def test_what_being_opened_does_is_one_line(self):
        for where in ("constructor", "open"):
            for what, says in ENDS.items():
                for command in COMMANDS if what in ("exit", "throw") else ("show", "check"):
                    with self.subTest(where=where, what=what, command=command):
                        self.check_told(self.run_with(command, f"{where} {what}"), says, command)

    def test_one_that_does_not_come_back_is_given_up(self):
        for where, command in (("constructor", "show"), ("open", "check"), ("open", "in process")):
            with self.subTest(where=where, command=command):
                self.check_told(self.run_with(command, where + " loop"),
                                "does not come back within 10 seconds", command)

    def test_one_that_waits_until_it_is_trusted_is_told_too(self):
        with tempfile.TemporaryDirectory() as folder:
            for number, (what, says) in enumerate(ENDS.items()):
                if what in ("_exit", "memory"):
                    continue  # nothing can tell the first, and the second takes all of the machine's
                for command in ("generate", "in process"):
                    after = pathlib.Path(folder) / f"{number} {command}"
                    with self.subTest(what=what, command=command):
                        result = self.run_with(command, "open " + what, HOSTILE_AFTER=str(after))
                        self.check_told(result, says, command)

    def test_what_a_question_does_ends_nothing_in_silence(self):
        for what, says in ENDS.items():
            with self.subTest(what=what):
                self.check_told(self.run_with("show", "asked " + what), says, "show")
                if what == "memory":
                    continue  # a suite may take what real models take
                checked = self.run_with("check", "asked " + what)
                self.assertEqual(checked.returncode, 3, checked.stdout)
                self.assertIn("FAILED", checked.stdout)
        self.check_told(self.run_with("show", "asked loop"), "does not come back", "show")
        for what in ("exit", "throw", "throw std"):
            with self.subTest(generates=what):
                self.check_told(self.run_with("generate", "asked " + what), ENDS[what], "generate")

    def test_the_suite_here_ends_in_time(self):
        result = program.run(*COMMANDS["in process"], "--timeout", 1, code=3, HOSTILE="asked loop")
        self.assertIn("error: the suite did not end within --timeout", result.stderr)
        refused = program.run(*COMMANDS["in process"], "--timeout", 0, code=2)
        self.assertIn("error: --timeout 0: seconds above 0 are expected", refused.stderr)


if __name__ == "__main__":
    unittest.main()
