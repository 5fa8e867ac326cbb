#!/usr/bin/env python3
"""Writes sdk/src/text/repair_tables.cpp from the tables of ftfy 6.3.1 and of Python's html module.

    make_repair_tables.py > sdk/src/text/repair_tables.cpp
"""

import html
import html.entities
import re
import re._parser as parser
import sys
import textwrap

import ftfy
from ftfy import badness, chardata

WORD = "word"  # the set of letters, numbers and the low line, which has no ranges here


def category(name):
    if name == parser.CATEGORY_SPACE:
        return frozenset(c for c in range(0x110000) if chr(c).isspace())
    assert name == parser.CATEGORY_WORD
    return WORD


def members(items):
    if items[0][0] == parser.NEGATE:
        return frozenset(range(0x110000)) - members(items[1:])
    result = set()
    for kind, value in items:
        if kind == parser.LITERAL:
            result.add(value)
        elif kind == parser.RANGE:
            result.update(range(value[0], value[1] + 1))
        else:
            assert kind == parser.CATEGORY, kind
            if category(value) == WORD:
                assert len(items) == 1
                return WORD
            result |= category(value)
    return frozenset(result)


def expand(tokens):
    """All sequences of sets that a pattern matches, in the order in which it tries them."""
    sequences = [()]
    for kind, value in tokens:
        if kind == parser.LITERAL:
            choices = [(frozenset([value]),)]
        elif kind == parser.IN:
            choices = [(members(value),)]
        elif kind == parser.ANY:
            choices = [(frozenset(range(0x110000)) - {10},)]
        elif kind == parser.AT:
            assert value == parser.AT_BEGINNING
            choices = [("start",)]
        elif kind == parser.SUBPATTERN:
            choices = expand(value[-1])
        elif kind == parser.BRANCH:
            choices = [sequence for branch in value[1] for sequence in expand(branch)]
        else:
            assert kind == parser.MAX_REPEAT, kind
            least, most, inner = value
            (once,) = expand(inner)
            choices = [once * times for times in range(most, least - 1, -1)]
        sequences = [before + after for before in sequences for after in choices]
    return sequences


class Tables:

    def __init__(self):
        self.sets, self.text = [WORD], []

    def number(self, members):
        if members not in self.sets:
            self.sets.append(members)
        return self.sets.index(members)

    def patterns(self, name, sequences):
        rows = []
        for sequence in sequences:
            is_start = sequence[0] == "start"
            numbers = [self.number(s) for s in sequence[is_start:]]
            rows.append("{%s, %d, {%s}}" %
                        ("true" if is_start else "false", len(numbers), ", ".join(map(str, numbers))))
        self.text.append(f"constexpr Sequence k{name}Rows[] = {{\n" + wrap(rows) + "};\n"
                         f"const std::span<const Sequence> k{name} = k{name}Rows;\n")

    def ranges(self):
        rows, starts = [], [0]
        for members in self.sets:
            points = [] if members == WORD else sorted(members)
            for at, point in enumerate(points):
                if at == 0 or points[at - 1] != point - 1:
                    first = point
                if at + 1 == len(points) or points[at + 1] != point + 1:
                    rows.append("{0x%X, 0x%X}" % (first, point))
            starts.append(len(rows))
        return ("constexpr CharRange kRangeRows[] = {\n" + wrap(rows) + "};\n"
                "const std::span<const CharRange> kRanges = kRangeRows;\n\n"
                "constexpr uint16_t kSetStartRows[] = {\n" + wrap(map(str, starts)) + "};\n"
                "const std::span<const uint16_t> kSetStarts = kSetStartRows;\n")


def wrap(items):
    return textwrap.fill(", ".join(items) + ",", 98, initial_indent="    ", subsequent_indent="    ",
                         break_long_words=False, break_on_hyphens=False) + "\n"


def encodings():
    rows = []
    for encoding in chardata.CHARMAP_ENCODINGS:
        high = bytes(range(0x80, 0x100)).decode(encoding)
        assert len(set(high)) == 128
        assert bytes(range(0x1a)).decode(encoding) == "".join(map(chr, range(0x1a)))
        substitute = b"\x1a".decode(encoding)
        rows.append("    {0x%X,\n     {\n" % ord(substitute) +
                    wrap("0x%X" % ord(c) for c in high) + "     }},  // " + encoding + "\n")
    strict = bytes(range(0x80, 0xa0)).decode("windows-1252", errors="replace")
    return ("constexpr Encoding kEncodingRows[] = {\n" + "".join(rows) + "};\n"
            "const std::span<const Encoding> kEncodings = kEncodingRows;\n\n"
            "// 0: not assigned.\n"
            "const std::array<char16_t, 32> kWindows1252 = {\n" +
            wrap("0x%X" % (0 if c == "\ufffd" else ord(c)) for c in strict) + "};\n")


def lines_of(words):
    lines = textwrap.wrap(" ".join(words), 92, break_long_words=False, break_on_hyphens=False)
    return "".join(f'    "{line} "\n' for line in lines)


def points(text):
    return ",".join("%X" % ord(c) for c in text)


def entities():
    """Names without the semicolon; ! says that the name counts without one too."""
    table = html.entities.html5
    words = [
        name[:-1] + ("!" if name[:-1] in table else "=") + points(text)
        for name, text in sorted(table.items()) if name.endswith(";")
    ]
    assert all(table[name + ";"] == text for name, text in table.items() if name[-1] != ";")
    upper = [
        name[1:-1] + "=" + points(text)
        for name, text in sorted(chardata.HTML_ENTITIES.items()) if name[1:] not in table
    ]
    return ("const std::string_view kEntities =\n" + lines_of(words).rstrip("\n") + ";\n\n"
            "const std::string_view kUpperEntities =\n" + lines_of(upper).rstrip("\n") + ";\n")


def widths():
    def plain(point):
        text = chardata.WIDTH_MAP.get(point, chr(point))
        return 0 if point == 0xffe3 else ord(text)

    assert chardata.WIDTH_MAP[0xffe3] == " \u0304" and chardata.WIDTH_MAP[0x3000] == " "
    assert set(chardata.WIDTH_MAP) <= {0x3000, *range(0xff01, 0xfff0)}
    return ("const std::array<char16_t, 239> kPlainWidths = {\n" +
            wrap("0x%X" % plain(point) for point in range(0xff01, 0xfff0)) + "};\n")


def main():
    assert ftfy.__version__ == "6.3.1"
    tables = Tables()
    tables.patterns("Bad", expand(parser.parse(badness.BADNESS_RE.pattern, re.VERBOSE)))
    tables.patterns("AlteredUtf8", expand(parser.parse(chardata.ALTERED_UTF8_RE.pattern)))
    tables.patterns("LossyUtf8", expand(parser.parse(chardata.LOSSY_UTF8_RE.pattern)))
    clue = {
        name: expand(parser.parse(f"[{text}]"))[0][0] for name, text in chardata.UTF8_CLUES.items()
    }
    follow = clue["utf8_continuation"]
    tables.patterns("Utf8Clues", [(clue[f"utf8_first_of_{n}"],) + (follow,) * (n - 1)
                                  for n in (2, 3, 4)])
    tables.patterns("Utf8Before", [(clue["utf8_continuation_strict"],)])
    tables.patterns("Space", [(category(parser.CATEGORY_SPACE),)])
    print("// Made by tests/sdk/text/make_repair_tables.py from the tables of ftfy 6.3.1 (Apache-2.0, Robyn\n"
          "// Speer), and of Python's html module.\n"
          "// clang-format off\n"
          '#include "text/repair_tables.h"\n\n'
          "namespace atelier::text::repair {\n")
    print(tables.ranges())
    print("\n".join(tables.text))
    print(encodings())
    print(widths())
    print(entities())
    print("}  // namespace atelier::text::repair")


if __name__ == "__main__":
    sys.exit(main())
