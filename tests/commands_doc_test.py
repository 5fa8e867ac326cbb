"""Compares docs/commands.md with the help of the program that was built.

    commands_doc_test.py SOURCE_FOLDER

ATELIER_BIN is the program.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
PROGRAM = pathlib.Path(os.environ.get("ATELIER_BIN", ROOT / "build/release/bin/atelier")).resolve()
PAGE = ROOT / "docs" / "commands.md"


TRAINING_PAGE = ROOT / "docs" / "training.md"
COMPAT_FLAGS = ROOT / "host" / "flags" / "compat_flags.cpp"


# A program with one command, a group of one, and a family that changes a flag and adds one.
SMALL = r"""#!/bin/sh
[ -z "$ATELIER_PLUGIN_PATH" ] || exit 9
case "$*" in
  "plugins --json") echo '{"plugins": [{"family": "toy", "problem": ""}, {"family": "bad", "problem": "x"}]}' ;;
  --help) printf 'atelier COMMAND [flags]\n\n  draw  draws\n  set   sets\n\nMore.\n' ;;
  "draw --help") printf 'atelier draw [flags]\n  --plugin TEXT  name\n  --size N       pixels\n' ;;
  "draw --plugin toy --help")
    printf 'atelier draw [flags]\n  --plugin TEXT   name\n  --size N        of 16\n  --long a|b\n                  wraps\n' ;;
  "set --help") printf 'atelier set COMMAND [flags]\n\n  one  does it\n' ;;
  "set one --help") printf 'atelier set one FILE\n  --json  as JSON\n' ;;
  *) echo "error: $*" >&2; exit 2 ;;
esac
"""
SMALL_PAGE = """
```text
atelier COMMAND [flags]

  draw  draws
  set   sets

More.
```

## atelier draw

```text
atelier draw [flags]
  --plugin TEXT  name
  --size N       pixels
```

With `--plugin toy`:

```text
  --size N        of 16
  --long a|b
                  wraps
```

## atelier set

```text
atelier set COMMAND [flags]

  one  does it
```

### atelier set one

```text
atelier set one FILE
  --json  as JSON
```
"""


def call(root, *arguments, **environment):
    return subprocess.run([sys.executable, root / "tools/command_reference", *arguments], text=True,
                          env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)


class CommandsPage(unittest.TestCase):
    def copy(self):
        """The tool in a folder of its own, without a page, and a small program."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_commands_"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "tools").mkdir()
        (folder / "docs").mkdir()
        shutil.copy(ROOT / "tools/command_reference", folder / "tools")
        (folder / "small").write_text(SMALL)
        (folder / "small").chmod(0o755)
        return folder

    def test_the_page_is_what_the_program_says(self):
        result = call(ROOT, "--check", PROGRAM)
        self.assertEqual((0, ""), (result.returncode, result.stderr), "run tools/command_reference and commit it")

    def test_every_command_has_a_section_with_its_flags(self):
        text = PAGE.read_text(encoding="utf-8")
        sections = dict(re.findall(r"^##+ atelier (.+)\n\n```text\n((?:.*\n)*?)```$", text, re.MULTILINE))
        self.assertLessEqual({"generate", "train", "cache", "inspect", "plugins", "probe", "check-plugin", "doctor",
                              "lora", "lora info", "lora convert", "lora merge", "lora extract", "completion"}, set(sections))
        for name, content in sections.items():
            with self.subTest(name):
                self.assertTrue(content.startswith(f"atelier {name} "), content[:80])
                if name not in ("completion", "plugin new", "plugin build"):
                    self.assertIn("--help" if name in ("lora", "plan", "plugin") else "\n  --", content)
        self.assertIn("\nWith `--plugin qwen_image`:\n", text)
        self.assertNotIn(str(ROOT), text)

    def test_help_fits_a_hundred_columns(self):
        blocks = re.findall(r"^```text\n((?:.*\n)*?)```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(blocks), 15)
        self.assertEqual([], [line for block in blocks for line in block.splitlines() if len(line) > 100])

    def test_a_page_that_differs_is_found_and_written_anew(self):
        folder = self.copy()
        page = folder / "docs/commands.md"
        for before in (None, "# Commands\n"):
            if before:
                page.write_text(before)
            result = call(folder, "--check", folder / "small")
            self.assertEqual(1, result.returncode, result.stderr)
            self.assertIn("run tools/command_reference", result.stderr)
            self.assertEqual(before, page.read_text() if page.exists() else None, "--check writes nothing")
        result = call(folder, folder / "small", ATELIER_PLUGIN_PATH=str(folder))
        self.assertEqual((0, ""), (result.returncode, result.stderr))
        head, body = page.read_text().split("\n\n", 2)[0], page.read_text().split("\n\n", 2)[2]
        self.assertEqual("# Commands", head)
        self.assertEqual(SMALL_PAGE.lstrip("\n"), body)
        self.assertEqual(0, call(folder, "--check", folder / "small").returncode)

    def test_a_program_that_fails_leaves_the_page_alone(self):
        folder = self.copy()
        (folder / "small").write_text(SMALL.replace('"set one --help"', '"set two --help"'))
        result = call(folder, folder / "small")
        self.assertEqual(3, result.returncode)
        self.assertEqual("error: tools/command_reference: atelier set one --help gives 2: error: set one --help\n",
                         result.stderr)
        self.assertFalse((folder / "docs/commands.md").exists())

    def test_wrong_calls_are_told(self):
        result = call(ROOT, "--help")
        self.assertEqual(0, result.returncode)
        self.assertTrue(result.stdout.startswith("usage: tools/command_reference"), result.stdout)
        folder = self.copy()
        for code, word, *arguments in ((2, "'--chekc'", "--chekc"), (2, "'stray'", "small", "stray"),
                                       (3, "tools/build"), (3, "tools/build", folder / "absent")):
            with self.subTest(word):
                result = call(folder, *arguments)
                self.assertEqual(code, result.returncode, result.stderr)
                self.assertIn(word, result.stderr)
                self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)

    def test_every_flag_of_kohyas_trainers_that_is_answered_is_in_the_table(self):
        page = TRAINING_PAGE.read_text(encoding="utf-8")
        table = page.split("## Coming from kohya's trainers")[1].split("\n## ")[0]
        rows = re.findall(r'^    \{kKohya\b[^"]*((?:"[^"]*"\s*)+)', COMPAT_FLAGS.read_text(encoding="utf-8"), re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"\w+", row)]
        self.assertGreater(len(names), 50)
        self.assertEqual([], [name for name in names if f"`--{name}`" not in table])


if __name__ == "__main__":
    unittest.main()
