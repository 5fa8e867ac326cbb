"""The generating lines of plugins/qwen_image/README.md, as they stand, on tiny weights of every published model: each makes
a picture, smaller and of fewer steps. Lines of layers and entities have suites of their own."""

import json
import sys
import unittest

import torch
from diffusers import QwenImageControlNetModel
from PIL import Image
from safetensors.torch import save_file

import atelier
import edit_models
import tiny_models
from controls_parity_test import BlockwiseNet
from pages import generating_lines
from tiny_run import FolderTest

SMALL = dict(height=64, width=64, num_inference_steps=1)
OTHER_SUITES = ("Layers", "EliGen")
# What names a model: its variant, and what its denoiser's config says.
EDITING = {"Qwen-Image-Edit": {}, "Qwen-Image-Edit-2509": {}, "Qwen-Image-Edit-2511": dict(zero_cond_t=True),
           "FireRed-Image-Edit-1.0": {}, "FireRed-Image-Edit-1.1": {}}


class PageTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = tiny_models.get()
        cls.models = edit_models.EditModels(cls.root)
        words = {word for _, line in generating_lines("qwen_image") for word in line}
        for i, name in enumerate(sorted(word for word in words if word.endswith(".png"))):
            edit_models.smooth_picture(64, 64, 40 + i).save(cls.root / name)
        Image.new("L", (64, 64)).save(cls.root / "mask.png")
        Image.linear_gradient("L").resize((64, 64)).point(lambda level: 255 * (level > 128)).save(cls.root / "mask.png")

    def lora(self, path):
        """Of two layers; that of three steps has peft's names."""
        prefix = "base_model.model." if "3step" in path.name else ""
        generator = torch.Generator().manual_seed(3)
        edited = self.models.load_transformer(self.models.parts) if "Edit" in str(path) else None
        width = (edited or self.tiny.transformer).inner_dim
        tensors = {}
        for layer in ("to_q", "to_k"):
            name = f"{prefix}transformer_blocks.0.attn.{layer}"
            tensors[f"{name}.lora_A.default.weight"] = torch.randn((4, width), generator=generator) / 8
            tensors[f"{name}.lora_B.default.weight"] = torch.randn((width, 4), generator=generator) / 8
        save_file(tensors, path)

    def blockwise(self, path):
        layers = len(self.tiny.transformer.transformer_blocks)
        net = BlockwiseNet(layers, self.tiny.transformer.inner_dim, 17 if "Inpaint" in str(path) else 16)
        save_file(tiny_models.randomize_(net, 81).state_dict(), path)

    def make(self, path):
        """What stands at a path of the page, below the folder of these tests."""
        whole = self.root / path
        if whole.exists():
            return whole
        name = path.split("/")[1]
        if name in EDITING:
            (self.root / "models").mkdir(exist_ok=True)
            self.models.folder = self.root / "models"
            self.models.variant(name, **EDITING[name])
            return whole
        if path.endswith(".safetensors"):
            whole.parent.mkdir(parents=True, exist_ok=True)
            (self.blockwise if "Blockwise" in name else self.lora)(whole)
        elif name == "Qwen-Image-ControlNet-Union":
            config = self.tiny.transformer.config
            net = QwenImageControlNetModel.from_transformer(
                self.tiny.transformer, num_layers=1, attention_head_dim=config.attention_head_dim,
                num_attention_heads=config.num_attention_heads, load_weights_from_transformer=False)
            tiny_models.randomize_(net, 71).save_pretrained(whole)
        else:
            folder = self.root / "models" / name
            folder.parent.mkdir(exist_ok=True)
            folder.symlink_to(self.tiny.model / ("transformer" if "Distill" in name else ""))
        return whole

    def run_line(self, line):
        words = list(line)
        for flag, small in SMALL.items():
            if "--" + flag in words:
                words[words.index("--" + flag) + 1] = small
            else:
                words += ["--" + flag, small]
        place = words.index("--model_paths") + 1
        words[place] = atelier.paths_argument([self.make(path) for path in json.loads(words[place])])
        if "--lora" in words:
            place = words.index("--lora") + 1
            words[place] = self.make(words[place])
        with atelier.call_folder("page") as folder:
            words[words.index("--output") + 1] = folder / "out.png"
            atelier.run(words, folder, cwd=self.root)
            with Image.open(folder / "out.png") as image:
                return image.size

    def test_every_line_makes_a_picture(self):
        lines = [(section, line) for section, line in generating_lines("qwen_image")
                 if not section.startswith(OTHER_SUITES)]
        self.assertGreaterEqual(len(lines), 19)
        for section, line in lines:
            with self.subTest(section, line=" ".join(line)):
                self.assertEqual((64, 64), self.run_line(line))


if __name__ == "__main__":
    sys.exit(unittest.main())
