"""Text encoders in GGUF files, whose tensors llama.cpp names, beside the same values in safetensors: the hidden states
are the same to the bit. gguf-py gives the names, and quantises."""

import sys
import unittest

import gguf
import numpy as np
import torch
from gguf.constants import MODEL_ARCH
from PIL import Image
from safetensors.torch import save_file

import atelier
import lumina2_encoders_parity_test
import parts_parity_test
import tiny_models
import umt5_parity_test
from tiny_run import FolderTest

KINDS = gguf.GGMLQuantizationType
DTYPES = ("float32", "bfloat16")
LENGTHS = [23, 1, 9, 40]
VOCABULARY = 300
ADDED = ("<|endoftext|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


def umt5():
    encoder = umt5_parity_test.make_encoder(61, d_model=64, d_ff=96)
    return encoder, {name: value for name, value in encoder.state_dict().items() if "embed_tokens" not in name}


def language(encoder):
    """Tensors of Qwen2.5-VL but those of the vision tower."""
    stem = "model.language_model."
    values = {"model." + name.removeprefix(stem): value for name, value in encoder.state_dict().items()
              if name.startswith(stem)}
    return {**values, "lm_head.weight": encoder.lm_head.weight.detach()}


def qwen():
    encoder = tiny_models.make_text_encoder(VOCABULARY, hidden=96, heads=6, kv_heads=2, sections=[2, 3, 3],
                                            ids={text: VOCABULARY - 1 - i for i, text in enumerate(ADDED)},
                                            seed=62, intermediate_size=128)
    return encoder, language(encoder)


def gemma():
    encoder = lumina2_encoders_parity_test.make_encoder(63, hidden_size=64, intermediate_size=96, sliding_window=5)
    return encoder, {"model." + name: value for name, value in encoder.state_dict().items()}


def part(kind, seed):
    """A language model of the SDK's, with a head of its own."""
    model = tiny_models.randomize_(parts_parity_test.LanguageModels.MODELS[kind](), seed)
    return model, model.state_dict()


ENCODERS = {
    "wan": (umt5, MODEL_ARCH.T5ENCODER, "wan"),
    "qwen_image": (qwen, MODEL_ARCH.QWEN2VL, "qwen_image"),
    "lumina2": (gemma, MODEL_ARCH.GEMMA2, "lumina2"),
    "qwen2": (lambda: part("qwen2", 64), MODEL_ARCH.QWEN2, parts_parity_test.PLUGIN),
    "qwen3": (lambda: part("qwen3", 65), MODEL_ARCH.QWEN3, parts_parity_test.PLUGIN),
    "llama": (lambda: part("llama", 66), MODEL_ARCH.LLAMA, parts_parity_test.PLUGIN),
}


def vision(encoder):
    """Tensors of the vision tower as converters cut them: queries, keys and values, and the two frames of patches."""
    values = {}
    for name, value in encoder.model.visual.state_dict().items():
        name = "visual." + name
        if ".attn.qkv." in name:
            for one, part in zip("qkv", value.chunk(3)):
                values[name.replace(".qkv.", f".{one}.")] = part
        elif "patch_embed" in name:
            values[name], values[name + ".1"] = value.unbind(2)
        else:
            values[name] = value
    return values


def joined(values):
    """The tensors of vision() as transformers has them."""
    whole = {}
    for name, value in values.items():
        if ".attn.q." in name:
            whole[name.replace(".q.", ".qkv.")] = torch.cat([values[name.replace(".q.", f".{one}.")] for one in "qkv"])
        elif name.endswith("patch_embed.proj.weight"):
            whole[name] = torch.stack([value, values[name + ".1"]], 2)
        elif not name.endswith(".1") and ".attn.k." not in name and ".attn.v." not in name:
            whole[name] = value
    return whole


def kind_of(name, value, matrices):
    """As llama.cpp chooses it: norms, biases, tables of distances and rows of no whole blocks stay as they are."""
    is_whole = value.dim() == 2 and value.shape[1] % 32 == 0
    return matrices if is_whole and "attn_rel_b" not in name else KINDS.F32


def write(path, arch, values, matrices):
    """Writes a GGUF file, and returns what its values are for transformers. Norms of Gemma are written with 1 added."""
    names = gguf.get_tensor_name_map(arch, 8)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    kept = {}
    for name, value in values.items():
        new = names.get_name(name, try_suffixes=(".weight", ".bias", ".weight.1"))
        kind = kind_of(new, value, matrices)
        offset = 1 if arch == MODEL_ARCH.GEMMA2 and name.endswith("norm.weight") else 0
        data = gguf.quants.quantize((value.float() + offset).numpy(), kind)
        writer.add_tensor(new, data, raw_dtype=kind)
        kept[name] = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind))) - offset
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


class LlamaCppTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        generator = torch.Generator().manual_seed(3)
        cls.texts = {"input_ids": torch.randint(3, VOCABULARY - len(ADDED), (len(LENGTHS), max(LENGTHS)),
                                                generator=generator),
                     "lengths": torch.tensor(LENGTHS)}

    def folders(self, kind, matrices):
        """The same encoder twice: as GGUF, and as safetensors of its values."""
        make, arch, _ = ENCODERS[kind]
        encoder, values = make()
        values = {name: value.detach().bfloat16() for name, value in values.items()}  # as published
        packed, plain = (self.dir / f"{kind} {matrices.name} {form}" for form in ("gguf", "plain"))
        for folder in (packed, plain):
            folder.mkdir()
            encoder.config.save_pretrained(folder)
        kept = write(packed / "encoder.gguf", arch, values, matrices)
        for name, value in values.items():
            if matrices == KINDS.F32:
                self.assertTrue(torch.equal(kept[name], value.float()), f"{name} is not what it was")
        save_file(tiny_models.contiguous(kept), plain / "model.safetensors")
        return packed, plain

    def same_hidden(self, component, got, expected, inputs, output, **options):
        """What the component gives of files in `got` and in `expected`: the same."""
        ours, theirs = (atelier.probe(component, paths, inputs, **options)[output] for paths in (got, expected))
        self.assertTrue(torch.isfinite(ours).all() and ours.float().std() > 0.1)
        self.assertTrue(torch.equal(ours, theirs), f"differs by {(ours - theirs).abs().max()}")
        return ours

    def check(self, kind):
        seen = []
        for matrices in (KINDS.F32, KINDS.Q8_0):
            packed, plain = self.folders(kind, matrices)
            for dtype in DTYPES:
                with self.subTest(matrices.name, dtype=dtype):
                    seen.append(self.same_hidden("text_encoder", packed, plain, self.texts, "hidden",
                                                 plugin=ENCODERS[kind][2], dtype=dtype))
        self.assertFalse(torch.equal(seen[0], seen[2]), "codes are not seen in the hidden states")

    def test_umt5(self):
        self.check("wan")

    def test_the_text_part_of_qwen2_5_vl(self):
        self.check("qwen_image")

    def test_gemma_2(self):
        self.check("lumina2")

    def test_qwen_2_and_3(self):
        for kind in ("qwen2", "qwen3"):
            with self.subTest(kind):
                self.check(kind)

    def test_llama_whose_heads_are_turned_there_is_not_read(self):
        packed, _ = self.folders("llama", KINDS.F32)
        with self.assertRaisesRegex(atelier.ProgramFailed, "is no component of parts_family"):
            atelier.probe("text_encoder", packed, self.texts, plugin=parts_parity_test.PLUGIN)

    def test_the_vision_tower_of_qwen2_5_vl(self):
        encoder, _ = qwen()
        encoder.config.save_pretrained(self.dir)
        values = {name: value.bfloat16() for name, value in vision(encoder).items()}
        pictures = {"pixel_values": torch.randn(8 * 12, 1176, generator=torch.Generator().manual_seed(4)),
                    "grid": torch.tensor([[1, 8, 12]])}
        for matrices in (KINDS.F32, KINDS.Q8_0):
            packed, plain = self.dir / f"mmproj-{matrices.name}.gguf", self.dir / f"{matrices.name}.safetensors"
            kept = write(packed, MODEL_ARCH.MMPROJ, values, matrices)
            save_file(tiny_models.contiguous(joined(kept)), plain)
            for dtype in DTYPES:
                with self.subTest(matrices.name, dtype=dtype):
                    self.same_hidden("vision_tower", packed, plain, pictures, "picture_embeds", dtype=dtype)

    def test_a_picture_that_is_edited_needs_both_files_of_qwen2_5_vl(self):
        tiny = tiny_models.get()
        model = self.dir / "Qwen-Image-Edit-2509"
        model.symlink_to(tiny.model)
        tiny.text_encoder.config.save_pretrained(self.dir)
        text, tower = self.dir / "Qwen2.5-VL.gguf", self.dir / "mmproj-Qwen2.5-VL.gguf"
        write(text, MODEL_ARCH.QWEN2VL, language(tiny.text_encoder), KINDS.F32)
        write(tower, MODEL_ARCH.MMPROJ, vision(tiny.text_encoder), KINDS.F32)
        noise = np.random.default_rng(5).integers(0, 256, (64, 80, 3), np.uint8)
        Image.fromarray(noise).save(self.dir / "day.png")

        def edited(*encoder):
            return atelier.generate([model / "transformer", model / "vae", *encoder],
                                    torch.zeros(1, 16, 1, 8, 8), prompt="a cat", edit_image=self.dir / "day.png",
                                    num_inference_steps=2, height=64, width=64, tokenizer_path=model / "tokenizer")[0]

        self.assertTrue(np.array_equal(edited(text, tower), edited(model / "text_encoder")))
        with self.assertRaisesRegex(atelier.ProgramFailed, "vision_tower, which is missing .* mmproj"):
            edited(text)


if __name__ == "__main__":
    sys.exit(unittest.main())
