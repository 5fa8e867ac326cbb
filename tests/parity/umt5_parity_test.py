"""umT5's encoder beside transformers' UMT5EncoderModel: values, gradients, spellings, bfloat16; and
prompts, cleaned and cut into tokens, beside diffusers and transformers."""

import copy
import io
import sys
import unittest

import sentencepiece
import torch
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from safetensors.torch import save_file
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

import atelier
import compare
import references
import tiny_models
import tokenizer_parity_test
from tiny_run import FolderTest

TOLERANCE = 1e-5
PIPELINE_TOKENS = 512  # what the Wan pipelines pad texts to

ENCODERS = {
    "as published": {},
    "other buckets": dict(relative_attention_num_buckets=12, relative_attention_max_distance=19),
    "far": dict(relative_attention_max_distance=400, num_layers=1),
    "wide heads": dict(num_heads=3, d_kv=24, d_model=40, layer_norm_epsilon=1e-3),
    "narrow heads": dict(num_heads=8, d_kv=4, d_ff=30, num_layers=3),
}

# What cleaning changes.
PROMPTS = [
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，"
    "杂乱的背景，三条腿，背景人很多，倒着走", "\u201cＦｕｌｌ　ｗｉｄｔｈ\u201d &amp;amp; ﬂuﬃ &lt;b&gt;", "cafÃ© âœ” l’humanitÃ©"
]

# transformers' names -> those of the original checkpoint.
ORIGINAL = (("shared.", "token_embedding."), ("encoder.final_layer_norm.", "norm."),
            ("encoder.block.", "blocks."), ("layer.0.layer_norm.", "norm1."),
            ("layer.1.layer_norm.", "norm2."),
            ("layer.0.SelfAttention.relative_attention_bias.", "pos_embedding.embedding."),
            ("layer.0.SelfAttention.", "attn."), ("layer.1.DenseReluDense.wi_0.", "ffn.gate.0."),
            ("layer.1.DenseReluDense.wi_1.", "ffn.fc1."), ("layer.1.DenseReluDense.wo.",
                                                           "ffn.fc2."))


def make_encoder(seed, **changes):
    config = UMT5Config(**{
        **dict(vocab_size=300, d_model=48, d_kv=16, d_ff=56, num_layers=2, num_heads=4,
               attn_implementation="eager"),
        **changes
    })
    # Scores are not scaled, so that queries are small; tables of distances are large, so that they
    # show.
    return tiny_models.randomize_(UMT5EncoderModel(config), seed,
                                  overrides=[(r"\.q\.weight", 0.3), (r"relative_attention", 4.0),
                                             (r"shared|embed_tokens", 5.0)])


def original(name):
    for there, here in ORIGINAL:
        name = name.replace(there, here)
    return name


def hidden(encoder, ids, lengths):
    """What the pipelines take: zero behind each text."""
    mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
    states = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return states * mask[..., None]


class PromptTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.texts = [*tokenizer_parity_test.strings(), *PROMPTS]

    def make(self, name, **settings):
        folder = self.root / name
        folder.mkdir()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(tiny_models.CORPUS * 4),
                                                 model_writer=model, model_type="unigram",
                                                 vocab_size=700, hard_vocab_limit=False,
                                                 pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                                                 normalization_rule_name="nmt_nfkc",
                                                 minloglevel=2, **settings)
        (folder / "spiece.model").write_bytes(model.getvalue())
        return folder, model.getvalue()

    def check(self, name, folder, expected):
        got = atelier.tokenize(folder, self.texts, plugin="wan")
        wrong = [(text, ours, expected(prompt_clean(text)))
                 for text, ours in zip(self.texts, got, strict=True)
                 if ours != expected(prompt_clean(text))]
        compare.record(f"umt5, prompts with other tokens, {name}", len(wrong))
        self.assertEqual(wrong[:3], [], f"{len(wrong)} of {len(self.texts)}")
        self.assertIn(PIPELINE_TOKENS, [len(ids) for ids in got], "no text is cut")

    def test_tokenizer_json_gives_the_same_ids(self):
        folder, _ = self.make("json")
        T5Tokenizer.from_pretrained(folder, extra_ids=0).save_pretrained(folder)
        (folder / "spiece.model").unlink()
        tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=0)
        self.check("tokenizer.json", folder, lambda text: tokenizer(
            text, max_length=PIPELINE_TOKENS, truncation=True).input_ids)

    def test_spiece_model_gives_those_of_sentencepiece(self):
        folder, model = self.make("model", byte_fallback=True)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.check("spiece.model", folder,
                   lambda text: processor.encode(text)[:PIPELINE_TOKENS - 1] + [1])


class Umt5Test(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.encoders = {}
        for number, (name, changes) in enumerate(ENCODERS.items()):
            cls.encoders[name] = make_encoder(60 + number, **changes)
            cls.encoders[name].save_pretrained(cls.root / name)
        cls.texts = cls.padded([23, 1, 9, 130], 130)

    @staticmethod
    def padded(lengths, width):
        ids = torch.randint(3, 300, (len(lengths), width), generator=torch.Generator().manual_seed(3))
        for row, length in enumerate(lengths):
            ids[row, length - 1] = 1  # the end
            ids[row, length:] = 0
        return {"input_ids": ids, "lengths": torch.tensor(lengths)}

    def ours(self, path, texts=None, **extra):
        return atelier.probe("text_encoder", path, texts or self.texts, plugin="wan", **extra)

    def expected(self, encoder, texts=None):
        return hidden(encoder, *(texts or self.texts).values())

    def test_hidden_states_are_the_same(self):
        for name, encoder in self.encoders.items():
            with self.subTest(name), torch.no_grad():
                compare.assert_close("umt5, " + name, self.ours(self.root / name)["hidden"],
                                     self.expected(encoder), TOLERANCE)

    def test_texts_padded_as_the_pipelines_do_give_the_same(self):
        texts = self.padded([77, PIPELINE_TOKENS], PIPELINE_TOKENS)
        encoder = self.encoders["as published"]
        with torch.no_grad():
            compare.assert_close("umt5, 512 tokens",
                                 self.ours(self.root / "as published", texts)["hidden"],
                                 self.expected(encoder, texts), TOLERANCE)

    def test_distances_show_in_the_hidden_states(self):
        """What the comparisons above would not see otherwise."""
        for name, changes in (("as published", dict(relative_attention_max_distance=90)),
                              ("far", dict(relative_attention_max_distance=128))):
            other = make_encoder(60 + list(ENCODERS).index(name), **{**ENCODERS[name], **changes})
            with torch.no_grad():
                far = compare.relative_error(self.expected(other),
                                             self.expected(self.encoders[name]))
            self.assertGreater(far, 1e-3, name)

    def test_gradients_are_the_same(self):
        for name, encoder in self.encoders.items():
            with self.subTest(name):
                got = self.ours(self.root / name, gradients=True, trainable="*")
                expected = references.gradients(self.expected(encoder), {},
                                                dict(encoder.named_parameters()))
                compare.assert_gradients(f"umt5, {name}, gradients", got, expected)

    def test_every_spelling_gives_the_same(self):
        encoder = self.encoders["as published"]
        state = tiny_models.contiguous(
            {key: value for key, value in encoder.state_dict().items() if "embed_tokens" not in key})
        embed = dict(state)
        embed["encoder.embed_tokens.weight"] = embed.pop("shared.weight")
        spellings = {
            "original": {original(key): value for key, value in state.items()},
            "embed_tokens": embed,
            "both": {**state, "encoder.embed_tokens.weight": embed["encoder.embed_tokens.weight"].clone(),
                     "spiece_model": torch.zeros(9, dtype=torch.uint8)},
            "bundle": {"text_encoders.umt5xxl.transformer." + k: v for k, v in state.items()},
        }  # fmt: skip
        for name, tensors in spellings.items():
            with self.subTest(name), torch.no_grad():
                folder = self.root / ("spelling " + name)
                folder.mkdir()
                save_file(tensors, folder / "model.safetensors")
                encoder.config.save_pretrained(folder)
                compare.assert_close("umt5, spelling " + name, self.ours(folder)["hidden"],
                                     self.expected(encoder), TOLERANCE)

    def test_an_archive_of_torch_save_gives_the_same(self):
        """Some of its tensors are turned, and one is a part of a larger one."""
        encoder = self.encoders["as published"]
        state = {original(key): value for key, value in encoder.state_dict().items()
                 if "embed_tokens" not in key}
        for key in list(state):
            if key.endswith(("attn.k.weight", "fc2.weight")):
                state[key] = state[key].t().contiguous().t()
        tokens = state["token_embedding.weight"]
        state["token_embedding.weight"] = torch.cat([tokens, tokens])[len(tokens):]
        folder = self.root / "archive"
        folder.mkdir()
        torch.save(state, folder / "encoder.pth")
        encoder.config.save_pretrained(folder)
        with torch.no_grad():
            for path in (folder / "encoder.pth", folder):
                compare.assert_close("umt5, torch.save()", self.ours(path)["hidden"],
                                     self.expected(encoder), TOLERANCE)

    def test_bfloat16_is_as_exact_as_transformers(self):
        for name, encoder in self.encoders.items():
            with self.subTest(name), torch.no_grad():
                rounded = copy.deepcopy(encoder).bfloat16()
                exact = self.expected(copy.deepcopy(rounded).double())
                theirs = self.expected(rounded).double() - exact
                ours = self.ours(self.root / name, dtype="bfloat16")["hidden"].double() - exact
                ratio = float(ours.square().mean().sqrt() / theirs.square().mean().sqrt())
                compare.record(f"umt5, {name}, bfloat16: error against transformers'", ratio)
                self.assertLess(ratio, 1.0)


if __name__ == "__main__":
    sys.exit(unittest.main())
