"""The text encoder gives transformers' hidden states and gradients, for every spelling of its
files."""

import re
import sys
import tempfile
import unittest

import torch

import atelier
import compare
import references
import tiny_models


class TextEncoderParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.encoder = cls.models.text_encoder
        generator = torch.Generator().manual_seed(11)
        cls.vocabulary = cls.models.tokenizer.vocab_size
        cls.lengths = torch.tensor([19, 41, 1])
        cls.input_ids = torch.randint(0, cls.vocabulary, (3, 41), generator=generator)
        for row, length in enumerate(cls.lengths):
            cls.input_ids[row, length:] = cls.models.tokenizer.pad_token_id

    def probe(self, paths, **extra):
        return atelier.probe("text_encoder", paths, {
            "input_ids": self.input_ids,
            "lengths": self.lengths
        }, **extra)

    def expected(self, encoder):
        with torch.no_grad():
            return references.hidden(encoder, self.input_ids, self.lengths)

    def test_a_prompt_gives_the_same_hidden_states(self):
        text = (tiny_models.TEMPLATE_PREFIX +
                "一只猫, a cat on a red sofa<|im_end|>\n<|im_start|>assistant\n")
        input_ids = self.models.tokenizer(text, return_tensors="pt").input_ids
        got = atelier.probe("text_encoder", self.models.model / "text_encoder",
                            {"input_ids": input_ids})["hidden"]
        with torch.no_grad():
            compare.assert_close("text encoder, one prompt", got,
                                 references.hidden(self.encoder, input_ids))

    def test_prompts_of_different_lengths_give_the_same_hidden_states(self):
        got = self.probe(self.models.model / "text_encoder")["hidden"]
        compare.assert_close("text encoder, batch", got, self.expected(self.encoder))
        for row, length in enumerate(self.lengths):
            self.assertFalse(got[row, length:].any(), f"padding of row {row} is not zero")

    def test_a_batch_equals_its_samples(self):
        got = self.probe(self.models.model / "text_encoder")["hidden"]
        for row, length in enumerate(self.lengths):
            single = atelier.probe("text_encoder", self.models.model / "text_encoder",
                                   {"input_ids": self.input_ids[row:row + 1, :length]})["hidden"]
            compare.assert_close("text encoder, batch against its samples",
                                 got[row:row + 1, :length], single)

    def test_the_newer_spelling_gives_the_same_hidden_states(self):
        got = self.probe(self.models.root / "text_encoder_memory")["hidden"]
        compare.assert_close("text encoder, newer spelling", got, self.expected(self.encoder))

    def test_a_single_file_without_config_gives_the_same_hidden_states(self):
        got = self.probe(self.models.root / "single" / "text_encoder.safetensors")["hidden"]
        compare.assert_close("text encoder, ComfyUI file", got,
                             self.expected(self.models.wide_text_encoder))

    def test_layers_with_a_window_give_the_same_hidden_states(self):
        ids = {
            text: self.models.tokenizer.convert_tokens_to_ids(text)
            for text, _ in tiny_models.ADDED_TOKENS
        }
        types = ["full_attention", "sliding_attention", "full_attention"]
        for name, changes in (("last layers", dict(max_window_layers=1)),
                              ("listed layers", dict(layer_types=types))):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                encoder = tiny_models.make_text_encoder(
                    self.encoder.config.text_config.vocab_size, hidden=96, heads=6, kv_heads=2,
                    sections=[2, 3, 3], ids=ids, seed=1,
                    **{**dict(use_sliding_window=True, sliding_window=5), **changes})
                encoder.save_pretrained(folder)
                expected = self.expected(encoder)
                compare.assert_close("text encoder, windows", self.probe(folder)["hidden"],
                                     expected)
                self.assertGreater(compare.relative_error(expected, self.expected(self.encoder)),
                                   0.01)

    def test_gradients_are_the_same(self):
        self.check_gradients("text encoder, all gradients", "*", lambda name: True)

    def test_only_matching_parameters_get_gradients(self):
        self.check_gradients("text encoder, gradients of one block", "model.layers.1.*",
                             lambda name: name.startswith("model.layers.1."))

    def check_gradients(self, name, glob, matches):
        got = self.probe(self.models.model / "text_encoder", gradients=True, trainable=glob)
        output = references.hidden(self.encoder, self.input_ids, self.lengths)
        # The vision tower and the head are no part of what the encoder computes.
        parameters = {
            re.sub(r"^model\.language_model\.", "model.", key): value
            for key, value in self.encoder.named_parameters()
            if key.startswith("model.language_model.")
        }
        chosen = {key: value for key, value in parameters.items() if matches(key)}
        compare.assert_gradients(name, got, references.gradients(output, {}, chosen))
        compare.assert_close("text encoder, values with gradients", got["hidden"], output)


if __name__ == "__main__":
    sys.exit(unittest.main())
