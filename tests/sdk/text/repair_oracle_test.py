"""Compares repaired texts with those of ftfy and of Python's html module.

usage: repair_oracle_test.py REPAIR_PROGRAM [--strings N] [--seed N]

Also that the tables of the source are those of ftfy.
"""
import argparse
import html
import io
import contextlib
import pathlib
import random
import re
import struct
import subprocess
import sys
import time
import unicodedata

try:
    import ftfy
    from ftfy import badness, chardata
except ImportError as problem:
    print(f"{problem.name} is not installed: skipped")
    sys.exit(77)
if ftfy.__version__ != "6.3.1":
    print(f"ftfy is {ftfy.__version__}, not 6.3.1: skipped")
    sys.exit(77)

import make_repair_tables

TABLES = pathlib.Path(__file__).resolve().parents[3] / "sdk/src/text/repair_tables.cpp"

# A negative prompt as it is published, and what is made of it.
NEGATIVE = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，"
    "JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，"
    "形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走")

HAND_PICKED = [
    "", " ", "a", NEGATIVE, "镜头切换，镜头晃动，" + NEGATIVE, "\u201cA cat\u201d \u2018sits\u2019 \u02bc \u201a \u201e",
    "ＬＯＵＤ　ＮＯＩＳＥＳ Ｕﾀｰﾝ \uffe3 \uffa0\uffee", "ﬂuﬃeﬆ Ĳsselmeer ŉ Ǆ ǆ ﬅ", "&lt;tag&gt;", "<b>&lt;</b>",
    "a&amp;b\n<i>\n&amp;", "a &amp; b\r\nc\rd\u2028e\u2029f\x85g", "P&EACUTE;REZ &ntilde; &nTILDE; BUNDESSTRA&SZLIG;E",
    "&amp;amp;amp;lt;", "&#60;&#x3C;&#60 &#x3c &#;&#x;&#0;&#13;&#128;&#x9d;&#xD800;&#1114112;&#99999999999999999999;",
    "&#59;", "&notit;", "&notin;", "&ampx &copy2 &amp&amp &", "&CounterClockwiseContourIntegral;", "&fjlig;",
    "\x1b[36;44mblue\x1b[0m \x1b[x", "\x00\x01\x0b\x7f\u206a\ufeff\ufff9\ufffc", "e\u0301 \u212b \u1100\u1161\u11a8",
    "sÃ³ âœ” No problems", "&macr;\\_(ã\x83\x84)_/&macr;", "voilÃ le travail", "Ã la mode", "l’humanitÃ©",
    "â€œ like this â€�", "The Mona Lisa doesnÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢t have eyebrows.", "Î±Î²Î³", "Ð¿Ñ€Ð¸Ð²ÐµÑ‚",
    "РљСЂР°СЃРЅРѕРµ", "ä½\xa0å¥½", "æ—¥æœ¬èªž", "ðŸ˜€ ðŸ± ðŸ’©", "Beyonc√© na√Øve", "cafÃ\xa9", "caf\xe9 \x93quoted\x94",
    "Crème brûlée, naïve façade, Ångström, Straße, İstanbul", "Ã\n", "Ã\xa0\n", "Â£10 Â°C", "ÂÂÂ", "vedere Ãˆ",
    "Å¡Å¾Å½", "à la carte — “50 °C”…", "€™", "ÃÂ©", "Ãƒ© x ©", "í\xa0½í¸€", "À\x80", "a\xc0\x80b Ã©",
    "\ufffd", "â€\ufffd", "┌─┐ │°□°│ (╯°□°）╯︵ ┻━┻", "1×2² ×²", "NIÃ‘OS", "ESPAÑA — 50 €", "ÖÄÜ°", "Œuvre œ!",
]

WORDS = ("a cat sits on the windowsill at dusk, cinematic lighting — 50 mm, f/1.8; \u201cneon\u201d caf\u00e9 na\u00efve "
         "\u4e00\u53ea\u53ef\u7231\u7684\u732b\uff0c \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u041f\u0440\u0438\u0432\u0435\u0442, "
         "\u0393\u03b5\u03b9\u03ac \u0645\u0631\u062d\u0628\u0627 \U0001f431\U0001f3d9\ufe0f 25 \u00b0C \u00a35 \u20ac7 \u2026 \u00bfqu\u00e9? "
         "\u00abd\u00e9j\u00e0 vu\u00bb 3\u00d74 \u00bd x\u00b2 \u2122 \u00a9 stra\u00dfe").split(" ")  # fmt: skip

# Blocks that a fix looks at, or that lie beside one.
RANGES = [(0, 0x1f), (0x20, 0x7e), (0x7f, 0xa0), (0xa0, 0xff), (0x100, 0x17f), (0x180, 0x24f), (0x2b0, 0x36f),
          (0x370, 0x3ff), (0x400, 0x4ff), (0x1100, 0x11ff), (0x1e00, 0x1eff), (0x1f00, 0x1fff), (0x2000, 0x206f),
          (0x20a0, 0x20bf), (0x2100, 0x214f), (0x2200, 0x22ff), (0x2500, 0x259f), (0x3000, 0x30ff),
          (0xac00, 0xac7f), (0xfb00, 0xfb4f), (0xfe00, 0xfeff), (0xff00, 0xffff), (0x1f300, 0x1f5ff)]
ENTITIES = sorted(chardata.HTML_ENTITIES) + sorted("&" + name for name in html.entities.html5)
CLUES = sorted({c for encoding in chardata.CHARMAP_ENCODINGS for c in bytes(range(0x80, 0x100)).decode(encoding)})


def piece(rng):
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(WORDS)
    if kind < 0.40:
        low, high = rng.choice(RANGES)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 4)))
    if kind < 0.50:
        return "".join(rng.choice(CLUES) for _ in range(rng.randint(1, 4)))
    if kind < 0.70:  # a word that was read wrongly, once or twice
        text = rng.choice(WORDS)
        for _ in range(rng.choice([1, 1, 1, 2])):
            encoding = rng.choice(chardata.CHARMAP_ENCODINGS)
            with contextlib.suppress(UnicodeError):
                text = text.encode("utf-8").decode(encoding)
        return text.replace("\xa0", " ") if rng.random() < 0.2 else text
    if kind < 0.80:
        entity = rng.choice(ENTITIES)
        return entity[:rng.randint(1, len(entity))] if rng.random() < 0.3 else entity
    if kind < 0.86:
        number = rng.choice([rng.randrange(0x300), rng.randrange(0x11000), rng.randrange(0x120000)])
        return rng.choice(["&#%d;", "&#x%x;", "&#X%X", "&#%d"]) % number
    if kind < 0.95:
        return rng.choice([" ", " ", "\n", "\r\n", "\r", "\t", "\u3000", "\x85", "\u2028", "<", ">", "&", ";", "\ufffd",
                           "\x1a", "?", "\x1b[0;3%dm" % rng.randrange(9), "\x1b[", "“", "”", "’", "…", "—"])
    return "".join(chr(rng.randint(0x80, 0xff)) for _ in range(rng.randint(1, 6)))


def text_of(rng):
    text = "".join(piece(rng) + rng.choice(["", " "]) for _ in range(rng.choice([1, 2, 3, 6, 12])))
    if rng.random() < 0.15:  # all of it was read wrongly
        with contextlib.suppress(UnicodeError):
            text = text.encode("utf-8").decode(rng.choice(chardata.CHARMAP_ENCODINGS))
    return "".join(c for c in text if not is_newer(c))


def is_newer(char):
    """What this Python's Unicode does not know, and surrogates, which no prompt can hold."""
    return unicodedata.category(char) in ("Cn", "Cs")


def collapsed(text):
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text)).strip()).strip()


def ours(program, texts):
    data = b"".join(struct.pack("<Q", len(raw)) + raw for raw in (text.encode() for text in texts))
    out = io.BytesIO(subprocess.run([program], input=data, capture_output=True, check=True).stdout)

    def field():
        (length,) = struct.unpack("<Q", out.read(8))
        return out.read(length).decode()

    return [(field(), field()) for _ in texts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        make_repair_tables.main()
    if sys.version_info[:2] == (3, 11) and written.getvalue() != TABLES.read_text(encoding="utf-8"):
        print(f"{TABLES}: is not what make_repair_tables.py writes")
        return 1

    rng = random.Random(arguments.seed)
    texts = list(HAND_PICKED)
    while len(texts) < arguments.strings:
        texts.append(text_of(rng))
    started = time.monotonic()
    wrong, bad = [], 0
    for text, (fixed, plain) in zip(texts, ours(arguments.program, texts)):
        bad += badness.is_bad(text)
        for what, got, expected in (("fix_text", fixed, ftfy.fix_text(text)), ("unescape", plain, collapsed(text))):
            if got != expected:
                wrong.append((what, text, got, expected))
    for what, text, got, expected in sorted(wrong, key=lambda entry: len(entry[1]))[:5]:
        print(f"{what} of {ascii(text)}:\n  {ascii(got)} instead of\n  {ascii(expected)}")
    if ftfy.fix_text(NEGATIVE) == NEGATIVE or bad < len(texts) // 10:
        print("the texts would prove nothing")
        return 1
    print(f"{len(texts)} texts, {bad} of them decoded wrongly: {len(wrong)} differ "
          f"({time.monotonic() - started:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
