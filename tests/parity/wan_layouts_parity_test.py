"""Wan's models are found in every published layout: folders of the original repositories with archives of
torch.save(), and single files. The files have the published names and shapes, and no values."""

import json
import pathlib
import re
import struct
import sys
import tempfile
import unittest

import torch
from PIL import Image

import atelier
import wan_models

TEXT = {"models_t5_umt5-xxl-enc-bf16.safetensors": "umt5_original"}
KEYS = pathlib.Path(__file__).resolve().parents[1] / "data/keys"


def read_keys(name):
    """Names and shapes of a published file, block ranges written out."""
    keys = {}
    for line in (KEYS / f"{name}.txt").read_text().splitlines()[1:]:
        pattern, sizes = line.split("\t")
        shape = [int(size) for size in sizes.split("x")] if sizes else []
        blocks = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
        numbers = range(int(blocks[1]), int(blocks[2]) + 1) if blocks else [None]
        for number in numbers:
            keys[pattern if blocks is None else pattern.replace(blocks[0], str(number))] = shape
    return keys


def write_safetensors(path, keys):
    """A file whose values are a hole, in bfloat16."""
    header, end = {}, 0
    for name, shape in keys.items():
        size = 2 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_pth(path, keys):
    torch.save({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in keys.items()}, path)


class WanLayoutsTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="atelier_wan_layouts_")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)

    def repository(self, experts, others):
        """An original repository: folders of DiTs, "" is the root, and other files in its root."""
        for folder, keys in experts.items():
            write_safetensors(self.dir / folder / "diffusion_pytorch_model.safetensors",
                              read_keys(keys))
        for name, keys in others.items():
            write = write_pth if name.endswith(".pth") else write_safetensors
            write(self.dir / name, read_keys(keys))
        tokenizer = self.dir / "google/umt5-xxl"
        tokenizer.mkdir(parents=True)
        (tokenizer / "spiece.model").symlink_to(wan_models.get().model / "tokenizer/spiece.model")
        (self.dir / "xlm-roberta-large").mkdir()
        (self.dir / "xlm-roberta-large/tokenizer.json").write_text("{}")

    def planned(self, *paths, **flags):
        """The components of a run that is planned and not made."""
        arguments = ["plan", "generate", "--json", self.dir / "plan.json", "--plugin", "wan",
                     "--model_paths", atelier.paths_argument(list(paths) or [self.dir]),
                     "--device_profile", "h200", "--prompt", "a cat", "--num_frames", 5, "--height",
                     480, "--width", 832]
        for name, value in flags.items():
            arguments += ["--" + name, value]
        atelier.run(arguments, self.dir)
        plan = json.loads((self.dir / "plan.json").read_text())
        return {component["name"] for component in plan["components"]}

    def picture(self):
        Image.new("RGB", (832, 480)).save(self.dir / "first.png")
        return self.dir / "first.png"

    def test_a_repository_of_one_denoiser_is_found_whole(self):
        self.repository({"": "wan_t2v_1_3b_original"}, {"Wan2.1_VAE.pth": "vae_original", **TEXT})
        self.assertEqual(self.planned(), {"text_encoder", "vae", "dit"})

    def test_repositories_of_two_experts_are_found_whole(self):
        for keys, flags in (("wan_t2v_14b_original", {}),
                            ("wan22_i2v_a14b_original", {"input_image": self.picture()})):
            with self.subTest(keys):
                self.setUp()
                self.repository({"high_noise_model": keys, "low_noise_model": keys},
                                {"Wan2.1_VAE.pth": "vae_original", **TEXT})
                self.assertEqual(self.planned(**flags), {"text_encoder", "vae", "dit", "dit2"})

    def test_a_repository_with_an_image_encoder_is_found_whole(self):
        self.repository({"": "wan_i2v_14b_original"},
                        {"Wan2.1_VAE.safetensors": "vae_original",
                         "models_clip_open-clip-xlm-roberta-large-vit-huge-14.safetensors":
                             "clip_original", **TEXT})
        self.assertEqual(self.planned(input_image=self.picture()),
                         {"text_encoder", "image_encoder", "vae", "dit"})

    def test_a_repository_with_the_other_vae_is_found_whole(self):
        self.repository({"": "wan22_ti2v_5b_original"},
                        {"Wan2.2_VAE.safetensors": "wan22_vae_original",
                         **TEXT})
        self.assertEqual(self.planned(), {"text_encoder", "vae", "dit"})

    def test_safetensors_go_before_an_archive_of_the_same_component(self):
        self.repository({"": "wan_t2v_1_3b_original"},
                        {"wan_2.1_vae.safetensors": "vae_original", **TEXT})
        keys = read_keys("vae_original")
        del keys["decoder.head.2.bias"]
        write_pth(self.dir / "Wan2.1_VAE.pth", keys)
        self.assertEqual(self.planned(), {"text_encoder", "vae", "dit"})
        (self.dir / "wan_2.1_vae.safetensors").unlink()
        with self.assertRaisesRegex(atelier.ProgramFailed, "decoder.head.2.bias"):
            self.planned()

    def test_single_files_are_told_by_their_names(self):
        files = {"diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors": "wan_t2v_14b_original",
                 "diffusion_models/wan2.2_t2v_high_noise_14B_fp16.safetensors":
                     "wan_t2v_14b_original",
                 "text_encoders/umt5_xxl_fp16.safetensors": "umt5",
                 "vae/wan_2.1_vae.safetensors": "vae_original"}
        self.repository({}, files)
        paths = [self.dir / name for name in files]
        self.assertEqual(self.planned(*paths, self.dir / "google/umt5-xxl"),
                         {"text_encoder", "vae", "dit", "dit2"})
        with self.assertRaisesRegex(atelier.ProgramFailed, "both are the component dit2"):
            self.planned(paths[0], *paths, self.dir / "google/umt5-xxl")


if __name__ == "__main__":
    sys.exit(unittest.main())
