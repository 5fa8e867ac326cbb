#!/usr/bin/env python3
"""Checks that text files end with one newline and have no trailing white space, that no file is over 500 KB, and that
comments of C++ name their subject in their first words.

    check_text.py FILE...

Exit code: 0 all is well, 1 something is wrong, 2 wrong usage.
"""
import pathlib
import re
import sys

LARGEST = 500 * 1024
SOURCES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
COMMENT = re.compile(r"\s*//")
# A reader who meets the comment alone cannot know what such words stand for.
NO_SUBJECT = re.compile(r"\s*// ?(Of|That|Those|The same)\b")


def problems(path):
    data = path.read_bytes()
    if len(data) > LARGEST:
        yield f"{path}: {len(data)} bytes, at most {LARGEST} are kept in the tree"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return
    if "\0" in text or not text:
        return
    if not text.endswith("\n") or text.endswith("\n\n"):
        yield f"{path}: ends without a newline, or with an empty line"
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip(" \t\r"):
            yield f"{path}:{number}: white space at the end of the line"
    if path.suffix in SOURCES:
        yield from openings(path, text.split("\n"))


def openings(path, lines):
    """Comments on lines of their own that begin without a subject."""
    for number, (before, line) in enumerate(zip(["", *lines], lines), 1):
        if not COMMENT.match(before) and (found := NO_SUBJECT.match(line)):
            yield f'{path}:{number}: a comment begins with "{found[1]}": name what it is about first'


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    found = []
    for argument in arguments:
        path = pathlib.Path(argument)
        if not path.is_file():
            print(f"error: tools/check_text.py: there is no file '{argument}'", file=sys.stderr)
            return 2
        found += problems(path)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
