"""Compares token ids with those of SentencePiece and of Hugging Face's tokenizers, on tiny models of
every kind that is read.

usage: sentencepiece_oracle_test.py TOKENIZE_PROGRAM [--strings N] [--seed N]

Models are trained here by SentencePiece itself, byte-pair and unigram ones: other normalizers, prefixes,
white space rules, byte fallback, symbols of the user. From some of the vocabularies a tokenizer.json is
made too, as the published ones are, and read by both sides.
"""
import argparse
import json
import pathlib
import random
import struct
import sys
import tempfile
import unicodedata

try:
    import sentencepiece
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
except ImportError as problem:
    print(f"{problem.name} is not installed: skipped")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from program import run_bytes  # noqa: E402

CORPUS = [
    "A photo of a cat sitting on the windowsill at dusk, oil painting, cinematic lighting, 8k.",
    "the quick brown fox jumps over the lazy dog, and the dog sleeps in the sun all the day long",
    "You are an assistant designed to generate superior images based on textual prompts or user prompts.",
    "一只可爱的猫坐在窗台上，窗外是黄昏的城市。超清，电影级构图。",
    "昔々、あるところに、おじいさんとおばあさんが住んでいました。カタカナとひらがな。",
    "안녕하세요, 오늘 날씨가 좋네요. 고양이 그림을 그려 주세요.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ελληνικά γράμματα.",
    "Crème brûlée, naïve façade, Ångström, Straße, İstanbul, smørrebrød, ﬁnancial Ⅷ ½ ²",
    "def main():    return {'a': [1, 2]}  # if (x != y) && z: 1234567890 3.14159",
    "  two spaces,   three, \t tabs \u3000ideographic\u00a0no-break   mixed   end   ",
    "aaaa aaa aa a banana bandana cabana abab ababab hahaha",
]

# Settings of the trainer, on top of those in train().
MODELS = {
    # As Gemma's: nothing is changed but spaces.
    "identity": dict(normalization_rule_name="identity",
                     byte_fallback=True,
                     add_dummy_prefix=False,
                     remove_extra_whitespaces=False,
                     control_symbols=["<2mass>"],
                     user_defined_symbols=[
                         "<mask>", "<unused0>", "\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<b>",
                         "</b>", "\t"
                     ]),
    # As Llama's.
    "prefix": dict(normalization_rule_name="identity", byte_fallback=True,
                   remove_extra_whitespaces=False),
    "nmt_nfkc": dict(normalization_rule_name="nmt_nfkc"),
    "nmt_nfkc_cf": dict(normalization_rule_name="nmt_nfkc_cf",
                        byte_fallback=True,
                        user_defined_symbols=["ﬁ", "İ", "a b", " x", "Ⅷ"]),
    "nfkc_suffix": dict(normalization_rule_name="nfkc", treat_whitespace_as_suffix=True),
    "kept_spaces": dict(normalization_rule_name="nfkc", remove_extra_whitespaces=False,
                        byte_fallback=True),
    "unescaped": dict(normalization_rule_name="nmt_nfkc"),
    "unused": dict(normalization_rule_name="identity", byte_fallback=True),
    "unused_unknown": dict(normalization_rule_name="nmt_nfkc"),
}
# Those of which a tokenizer.json is made.
AS_JSON = {"identity": "Replace", "prefix": "Prepend"}

UNIGRAM_MODELS = {
    # As umT5's.
    "nmt_nfkc": dict(normalization_rule_name="nmt_nfkc", byte_fallback=True),
    "no_bytes": dict(normalization_rule_name="nmt_nfkc"),
    "identity": MODELS["identity"],
    "kept_spaces": MODELS["kept_spaces"],
    "nmt_nfkc_cf": MODELS["nmt_nfkc_cf"],
    "suffix": MODELS["nfkc_suffix"],
    "unescaped": MODELS["unescaped"],
    "unused": MODELS["unused"],
    "unused_unknown": MODELS["unused_unknown"],
    "ties": dict(normalization_rule_name="nmt_nfkc", byte_fallback=True),
}

HAND_PICKED = [
    b"", b" ", b"  ", b"   ", b"\n", b"\r\n", b"\t", b"a", b" a", b"a ", b" a ", b"  a  b  ", b"a\nb", b"\x00",
    b"a\x00b", "▁".encode(), "▁a▁▁b▁".encode(), "a ▁ b".encode(), b"<bos>", b"<unk>", b"<s></s>", b"<mask>",
    b"a<mask>b", b" <mask> ", b"<mas", b"<unused0><unused0>", b"<0x41>", b"<0x0A>", b"<2mass>", b"\n\n\n\n\n",
    b"     ", b"<b>bold</b>", b"\xff", b"a\xffb", b"\xe2\x96", b"\xe2\x96a", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xc0\x80", b"\xf0\x9f", b"\xf0\x9f\xf0\x9f\x90\xb1", "\ufffd".encode(), "\ufeffa".encode(),
    "\u200b\u00ad\u2060".encode(), "e\u0301 é \u1e9b\u0323".encode(), "ﷺ ㌀ ﬃ Ⅷ ①".encode(),
    "\U0001f431\U0001f3d9\ufe0f\U0001f468\u200d\U0001f469\u200d\U0001f467".encode(), "\u0378\U000323b0".encode(),
    "\U0010ffff\ue000".encode(), "각 한글 ᄀ".encode(), b"abcdefghijklmnopqrstuvwxyz" * 20,
]  # fmt: skip

RANGES = [(0x20, 0x7e), (0x20, 0x7e), (0, 0x1f), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f),
          (0x590, 0x6ff), (0x900, 0xdff), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f),
          (0x2100, 0x2bff), (0x3000, 0x33ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xffef),
          (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x2f800, 0x2fa1d)]


def train(kind, name, settings, folder):
    """Trains a model, and changes what the trainer has no flag for."""
    prefix = folder / f"{kind}_{name}"
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 3),
                                             model_prefix=str(prefix),
                                             model_type=kind,
                                             vocab_size=760,
                                             hard_vocab_limit=False,
                                             character_coverage=0.98,
                                             pad_id=0,
                                             eos_id=1,
                                             bos_id=2,
                                             unk_id=3,
                                             bos_piece="<bos>",
                                             eos_piece="<eos>",
                                             minloglevel=2,
                                             **settings)
    file = folder / (prefix.name + ".model")
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(file.read_bytes())
    if name == "unescaped":
        model.normalizer_spec.escape_whitespaces = False
        for piece in model.pieces:
            piece.piece = piece.piece.replace("▁", " ")
    if name.startswith("unused"):
        rng = random.Random(5)
        for piece in model.pieces:
            if piece.type == 1 and len(piece.piece) > 1 and rng.random() < 0.3:
                piece.type = 5
        if name == "unused_unknown":
            for piece in [piece for piece in model.pieces if len(piece.piece) == 1][::9]:
                if piece.type == 1:
                    piece.piece = "¤" + piece.piece
    if name == "ties":
        for piece in model.pieces:
            if piece.type == 1:
                piece.score = -float(len(piece.piece))
    file.write_bytes(model.SerializeToString())
    return file, model


def write_json(model, normalizer, file, joined):
    """The tokenizer.json of a vocabulary; merges are "a b" when `joined`, else pairs."""
    pieces = [piece.piece for piece in model.pieces]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = []
    for number, piece in enumerate(model.pieces):
        if piece.type != 1:
            continue
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-piece.score, number, vocabulary[left], vocabulary[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(merges)]
    result = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary,
                              merges=merges,
                              fuse_unk=True,
                              byte_fallback=True,
                              unk_token="<unk>"))
    replace = tokenizers.normalizers.Replace(" ", "▁")
    if normalizer == "Prepend":
        result.normalizer = tokenizers.normalizers.Sequence(
            [tokenizers.normalizers.Prepend("▁"), replace])
    else:
        result.normalizer = replace
        result.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    result.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("▁", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse()
    ])
    for piece in model.pieces:
        if piece.type in (2, 3):
            result.add_special_tokens([tokenizers.AddedToken(piece.piece, normalized=False)])
        elif piece.type == 4:
            result.add_tokens([tokenizers.AddedToken(piece.piece, normalized=False)])
    tree = json.loads(result.to_str())
    tree["model"]["merges"] = [" ".join(pair) if joined else list(pair) for pair in merges]
    file.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")


def pipelines(model):
    """Normalizer and pre-tokenizer of a tokenizer.json, as converters write them."""
    normalizers, pre_tokenizers = tokenizers.normalizers, tokenizers.pre_tokenizers
    compiled = model.normalizer_spec.precompiled_charsmap
    rules = [normalizers.Precompiled(compiled)] if compiled else []
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    several = normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")
    yield "split", normalizers.Sequence(rules) if rules else None, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), metaspace])
    yield "metaspace", normalizers.Sequence(
        [*rules, normalizers.Strip(left=False, right=True), several]), metaspace
    for scheme in ("first", "never"):
        yield scheme, normalizers.Sequence(rules) if rules else None, pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=scheme, split=False)
    yield "replaced", normalizers.Sequence([*rules, normalizers.Replace(" ", "▁")]), None


def write_unigram_json(model, normalizer, pre_tokenizer, file):
    result = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(piece.piece, piece.score) for piece in model.pieces],
                                  unk_id=model.trainer_spec.unk_id,
                                  byte_fallback=model.trainer_spec.byte_fallback))
    if normalizer:
        result.normalizer = normalizer
    if pre_tokenizer:
        result.pre_tokenizer = pre_tokenizer
    for piece in model.pieces:
        if piece.type == 3:
            result.add_special_tokens([tokenizers.AddedToken(piece.piece, normalized=False)])
        elif piece.type == 4:
            result.add_tokens([tokenizers.AddedToken(piece.piece, normalized=False)])
    result.save(str(file))


def strings(count, seed):
    rng = random.Random(seed)
    words = sorted({word for line in CORPUS for word in line.split()})

    def piece():
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(words).encode()
        if kind < 0.50:
            return rng.choice([" ", " ", "  ", "   ", "\n", "\n\n", "\t", "\u3000", "\u00a0", "▁", "▁▁"]).encode()
        if kind < 0.70:
            low, high = rng.choice(RANGES)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))).encode()
        if kind < 0.78:
            return bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
        if kind < 0.86:
            return rng.choice(HAND_PICKED[:-1])
        if kind < 0.93:
            text = rng.choice(words).encode()
            return text[:rng.randint(0, len(text))]
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKD"]), rng.choice(words)).encode()

    result = list(HAND_PICKED)
    while len(result) < count:
        result.append(b"".join(piece() + (b" " if rng.random() < 0.3 else b"")
                               for _ in range(rng.randint(1, 20))))
    return result


def code_points():
    """Texts of all code points below U+20000 and samples of the rest, alone and beside others: what
    compiled rules make of a character depends on whether it forms a cluster with its neighbour."""
    points = [*range(1, 0xd800), *range(0xe000, 0x20000), *range(0x20000, 0x110000, 61)]
    for context in ("{}", "½{}", "\u00a0{}", "{}\u0301", "\u0600{}"):
        for at in range(0, len(points), 256):
            yield "".join(context.format(chr(point)) for point in points[at:at + 256]).encode()


def plain_texts(count, seed):
    """Words and single spaces, without what one of two files spells in a symbol."""
    rng = random.Random(seed)
    words = [word for line in CORPUS for word in line.split()]
    return [" ".join(rng.choices(words, k=rng.randint(1, 12))).encode() for _ in range(count)]


def tokenize(program, file, texts):
    """The ids of each text."""
    return timed_tokenize(program, file, texts)[0]


def timed_tokenize(program, file, texts):
    """The ids of each text, and the processor's time of all in seconds."""
    given = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    result = run_bytes([program, file], stdin=given, timeout=200)
    if result.returncode != 0:
        raise AssertionError(f"{file.name}: exit code {result.returncode}: {result.stderr.decode()}")
    lines = result.stdout.decode().split("\n")[:-1]
    return [[int(word) for word in line.split()] for line in lines], result.seconds


def compare(program, name, file, texts, reference):
    ours = tokenize(program, file, texts)
    assert len(ours) == len(texts), f"{name}: {len(ours)} lines of ids for {len(texts)} texts"
    wrong = [(text, got, want) for text, got in zip(texts, ours) if got != (want := reference(text))]
    if wrong:
        text, got, want = min(wrong, key=lambda entry: len(entry[0]))
        raise AssertionError(f"{name}: {len(wrong)} of {len(texts)} differ; {text!r}: {got} instead of {want}"[:2000])
    print(f"{name}: {len(texts)} texts, {sum(map(len, ours))} tokens, all equal")


def check_long_texts(program, file):
    """A long text takes about as much of a processor's time for each of its bytes as a short one."""
    rng = random.Random(3)
    for name, unit in (("one letter", b"a"), ("words", b"banana and the cat "), ("spaces", b" "),
                       ("unknown", "\u0378".encode()), ("noise", bytes(rng.randrange(97, 123) for _ in range(5000)))):
        seconds = []
        for length in (25_000, 400_000):
            text = unit * (length // len(unit))
            (ids,), used = timed_tokenize(program, file, [text])
            seconds.append(used)
            assert ids or not text.strip(), f"{name}: no tokens"
        # 16 times the text; quadratic work would take 256 times as long.
        assert seconds[1] < 60 * max(seconds[0], 0.05), f"{name}: {seconds} seconds for 1 and 16 units"


def check_bpe(program, folder, texts, utf8, seed):
    for name, settings in MODELS.items():
        file, model = train("bpe", name, settings, folder)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
        compare(program, file.stem, file, texts, processor.encode)
        if name not in AS_JSON:
            continue
        for joined in (False, True):
            path = folder / f"bpe_{name}_{'joined' if joined else 'pairs'}.json"
            write_json(model, AS_JSON[name], path, joined)
            compare(program, path.name, path, utf8, json_reference(path))
        plain = plain_texts(500, seed)
        compare(program, f"{name}, both files", file, plain,
                dict(zip(plain, tokenize(program, path, plain))).get)
    check_long_texts(program, folder / "bpe_identity.model")
    check_long_texts(program, folder / "bpe_identity_pairs.json")
    check_long_texts(program, folder / "bpe_prefix_pairs.json")


def check_unigram(program, folder, texts, utf8):
    for name, settings in UNIGRAM_MODELS.items():
        file, model = train("unigram", name, settings, folder)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
        compare(program, file.stem, file, texts, processor.encode)
        for pipeline, normalizer, pre_tokenizer in pipelines(model):
            path = folder / f"unigram_{name}_{pipeline}.json"
            write_unigram_json(model, normalizer, pre_tokenizer, path)
            compare(program, path.name, path, utf8, json_reference(path))
    points = list(code_points())
    file, path = folder / "unigram_nmt_nfkc.model", folder / "unigram_nmt_nfkc_replaced.json"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
    compare(program, f"{file.name}, all code points", file, points, processor.encode)
    compare(program, f"{path.name}, all code points", path, points, json_reference(path))
    check_long_texts(program, file)
    check_long_texts(program, path)
    check_long_texts(program, folder / "unigram_nmt_nfkc_split.json")


def json_reference(path):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return lambda text: tokenizer.encode(text.decode(), add_special_tokens=False).ids


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--strings", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    texts = strings(arguments.strings, arguments.seed)
    utf8 = [text.decode("utf-8", "replace").encode() for text in texts]
    with tempfile.TemporaryDirectory(prefix="sentencepiece_oracle_") as folder:
        folder = pathlib.Path(folder)
        check_bpe(arguments.program, folder, texts, utf8, arguments.seed)
        check_unigram(arguments.program, folder, texts, utf8)


if __name__ == "__main__":
    main()
