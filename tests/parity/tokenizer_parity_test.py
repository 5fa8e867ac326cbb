"""Token ids are those of Hugging Face's tokenizers, for both file layouts and for published
files."""

import os
import pathlib
import random
import sys
import tempfile
import unicodedata
import unittest

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import Qwen2Tokenizer

import atelier
import compare
import tiny_models

NUM_STRINGS = 2000

# Of Qwen2.5, and of those that tell upper from lower case: between them, all categories that split.
PATTERNS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Around a code point. The first five show by their splits what it is; the others, by the order of
# marks and by what is composed, how it is normalised: before and behind the lowest and the highest
# class of marks, and between a letter and its accent.
CONTEXTS = ("a{}", "A{}", "1{}", "!{}", " {}", "{}\u0334", "\u0345{}", "e{}\u0301", "\u1100{}",
            "\uac00{}")

HAND_PICKED = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    " \n",
    "\n ",
    "a",
    " a",
    "a ",
    "  a",
    "a  ",
    "a  b",
    "a   b\n\n  c",
    "\na cat",
    "a cat\n",
    "a cat\n\n",
    " \n\n \n a",
    "\t\ta\t\tb",
    "a\u00a0b",
    "a\u00a0\u00a0b",
    "\u3000\u3000a\u3000b",
    "\u2028a\u2029b",
    "\u0085a\u0085",
    "\x0b\x0c\x1c\x1d\x1e\x1f a",
    "\u200b\u200ca\u200d\ufeff",
    "\x00",
    "a\x00b",
    "it's IT'S It'S 's 'T 're'RE 've 'm 'll 'd 'x",
    "\u2019s don\u2019t",
    "'\u017f '\u017fa K's \u212a's",
    "''s '''ll",
    "0123456789",
    "3.14 1,000,000 1e-5 ½ ² Ⅷ ٣٤٥ 四十二 \U0001d7d8\U0001d7d9",
    "a1b2 c3 4d",
    "!!! ??? ... !!!\n\n ---\r\n  (*&^%$#@)",
    "http://example.com/a?b=c&d=e#f",
    "C:\\path\\to\\file.txt",
    "🐱",
    "🐱🐱 🐱",
    "👩‍👩‍👧‍👦",
    "🇩🇪🇫🇷",
    "👍🏽👍🏿",
    "❤️ ❤",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "1️⃣",
    "一只猫",
    "一只可爱的猫，坐在窗台上。",
    "猫 cat 猫cat cat猫",
    "你好！世界？",
    "𠀀𠮷𩸽",
    "한국어 테스트",
    "ひらがなカタカナ",
    "Crème brûlée",
    unicodedata.normalize("NFD", "Crème brûlée Ångström ệ"),
    "e\u0301 e\u0301\u0323 e\u0323\u0301",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0958 \u0929 \u09dc",
    "\u212b \u2126 \uf900 \U0002f800",
    "ﬁ ﬂ ﬀ ① ㌀",
    "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307",
    "\u0301a",
    " \u0301a",
    "\u0f71\u0f72\u0f73",
    "\u0344 \u0340 \u0341",
    "<|im_start|>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_end|>",
    " <|im_start|> ",
    "a<|endoftext|>b",
    "<|im_start|",
    "|im_start|>",
    "<<|im_start|>>",
    "<|IM_START|>",
    "<| im_start |>",
    "<|vision_start|><|image_pad|>"
    "<|vision_end|>Image 1: ",
    "<tool_call>{\"a\": 1}</tool_call>",
    "<tool_call",
    "<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>",
    "\ufffd \uffff \U0010ffff \ue000",
    "\u0378\u0379 \U000323b0",
    tiny_models.TEMPLATE_PREFIX + "a cat",
    tiny_models.TEMPLATE_PREFIX + "\na cat<|im_end|>\n<|im_start|>assistant\n",
    "word " * 300,
    "a" * 1000,
    " " * 500,
    "\n" * 300,
    "猫" * 300,
    "<|im_start|>" * 50,
]

RANGES = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff),
          (0x900, 0xdff), (0xe00, 0xeff), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f),
          (0x2100, 0x2bff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff),
          (0xfe00, 0xffef), (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x20000, 0x2a6df),
          (0x2f800, 0x2fa1d)]
SPACES = [
    " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2003",
    "\u0085", "\u2028"
]


def strings():
    """2,000 strings: the hand-picked ones, then fixed random mixtures of everything that they are
    made of."""
    rng = random.Random(20240)
    words = sorted({word for line in tiny_models.CORPUS for word in line.split()})
    added = [text for text, _ in tiny_models.ADDED_TOKENS]

    def any_code_point():
        while True:
            point = rng.randrange(0x110000)
            if not 0xd800 <= point <= 0xdfff:
                return chr(point)

    def piece():
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(words)
        if kind < 0.55:
            return rng.choice(SPACES)
        if kind < 0.70:
            low, high = rng.choice(RANGES)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
        if kind < 0.76:
            return any_code_point()
        if kind < 0.82:
            return rng.choice(added)
        if kind < 0.86:
            token = rng.choice(added)
            return token[:rng.randint(1, len(token))]
        if kind < 0.91:
            return str(rng.randrange(10**rng.randint(1, 9)))
        if kind < 0.95:
            return rng.choice([
                "'s", "'T", "'ll", "'Re", "...", "!?", "--", "::", "\u0301", "\u0323", "\ufe0f",
                "\u200d"
            ])
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKD"]), rng.choice(words))

    result = list(HAND_PICKED)
    while len(result) < NUM_STRINGS:
        text = "".join(
            piece() + (" " if rng.random() < 0.3 else "") for _ in range(rng.randint(1, 24)))
        result.append(text)
    return result


def code_points():
    """All that Unicode has assigned or may soon, and samples of the rest."""
    dense = [*range(0xd800), *range(0xe000, 0x20000), *range(0x2a600, 0x2b800),
             *range(0x2ce00, 0x2ec00), *range(0x2f800, 0x2fa20), *range(0x323a0, 0x33500),
             *range(0xe0000, 0xe0200)]
    return sorted({*dense, *range(0x20000, 0x110000, 61)})


def tokenizer_of_splits(pattern):
    """A tokenizer whose ids show where a text was split: the merges join what may begin a word with
    the first byte of any character, and nothing else."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = {byte: char for byte, char in zip(
        sorted(range(256), key=lambda b: (not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174), b)),
        alphabet)}
    merges = [(spelled[ord(first)], spelled[lead]) for first in "aA1! e"
              for lead in [*range(0x80), *range(0xc2, 0xf5)]]
    vocab = {token: number for number, token in enumerate(
        dict.fromkeys([*alphabet, *(a + b for a, b in merges)]))}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    return tokenizer


class TokenizerParityTest(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.texts = strings()
        cls.models = tiny_models.get()

    def check(self, name, folder, reference, ascii_only=True):
        got = atelier.tokenize(folder, self.texts, ascii_only)
        self.assertEqual(len(got), len(self.texts), f"{name}: lines of ids")
        wrong = [(text, ours, theirs)
                 for text, ours in zip(self.texts, got)
                 if ours != (theirs := reference(text))]
        compare.record(f"tokenizer, {name}: strings with other ids", len(wrong))
        if wrong:
            text, ours, theirs = min(wrong, key=lambda entry: len(entry[0]))
            self.fail(
                f"{name}: {len(wrong)} of {len(got)} strings differ; {ascii(text)}: {ours} "
                f"instead of {theirs}")

    def reference_of(self, folder):
        """The ids of `tokenizer.json` where there is one, else those of transformers' class for the
        two files."""
        file = pathlib.Path(folder) / "tokenizer.json"
        if file.is_file():
            tokenizer = Tokenizer.from_file(str(file))
            return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer = Qwen2Tokenizer.from_pretrained(folder)
        return lambda text: tokenizer(text, add_special_tokens=False).input_ids

    def test_the_two_layouts_agree_on_the_reference_side(self):
        first, second = self.reference_of(self.models.model / "tokenizer"), self.reference_of(
            self.models.root / "tokenizer_json")
        self.assertEqual([first(text) for text in self.texts],
                         [second(text) for text in self.texts])

    def test_vocab_and_merges_give_the_same_ids(self):
        folder = self.models.model / "tokenizer"
        self.check("vocab.json and merges.txt", folder, self.reference_of(folder))

    def test_tokenizer_json_gives_the_same_ids(self):
        folder = self.models.root / "tokenizer_json"
        self.check("tokenizer.json", folder, self.reference_of(folder), ascii_only=False)

    def test_every_code_point_is_normalised_and_split_alike(self):
        points = code_points()
        texts = [
            "".join(context.format(chr(point)) for point in points[at:at + 256])
            for context in CONTEXTS for at in range(0, len(points), 256)
        ]
        for number, pattern in enumerate(PATTERNS):
            with tempfile.TemporaryDirectory() as folder:
                tokenizer = tokenizer_of_splits(pattern)
                tokenizer.save(f"{folder}/tokenizer.json")
                got = atelier.tokenize(folder, texts)
            expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            wrong = [
                text for text, ours, theirs in zip(texts, got, expected) if ours != theirs.ids
            ]
            compare.record(f"tokenizer, texts of all code points with other ids, pattern {number}",
                           len(wrong))
            self.assertEqual(wrong, [], f"pattern {number}: {len(wrong)} of {len(texts)} texts")

    def test_published_tokenizers_give_the_same_ids(self):
        folders = [
            path for path in os.environ.get("ATELIER_TEST_TOKENIZERS", "").split(":") if path
        ]
        if not folders:
            self.skipTest("ATELIER_TEST_TOKENIZERS names no folder")
        for folder in folders:
            with self.subTest(folder=folder):
                self.check(folder, folder, self.reference_of(folder))


if __name__ == "__main__":
    sys.exit(unittest.main())
