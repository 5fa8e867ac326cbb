"""Wan: LoRA files in every published spelling change clips as diffusers' conversions say, and whole
differences as their sums."""

import contextlib
import sys
import unittest

import torch
from safetensors.torch import load_file, save_file

import atelier
import compare
import wan_checks
import wan_models
import wan_parity_test as wan

RANK, ALPHA = 4, 2.0
LINEARS = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_k",
           "attn2.to_v", "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2")


def original(name):
    """What the original repository calls a tensor of diffusers' transformer."""
    (renamed,) = wan_models.renamed({name: None}, wan_models.ORIGINAL_DIT)
    return renamed


class WanLoraTest(wan.WanPipelineTest):
    """Uses the helpers of the other suite, none of its tests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.models.root / "loras"
        cls.folder.mkdir(exist_ok=True)
        cls.state = {
            name: value.clone() for name, value in cls.models.transformer.state_dict().items()
        }
        cls.latents = wan_checks.noise(1, 32, 48, seed=51)
        cls.steps = dict(num_inference_steps=2)

    def random(self, shape, size, seed):
        return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def factors(self, names):
        """By layer, as diffusers calls it: A and B."""
        result = {}
        for number, name in enumerate(names):
            rows, columns = self.state[name + ".weight"].shape
            result[name] = (self.random((RANK, columns), 0.3, 2 * number),
                            self.random((rows, RANK), 0.3, 2 * number + 1))
        return result

    def blocks(self):
        return self.factors([f"blocks.{i}.{layer}" for i in range(2) for layer in LINEARS])

    def write(self, name, tensors):
        path = self.folder / f"{name}.safetensors"
        save_file({key: value.clone().contiguous() for key, value in tensors.items()}, path)
        return path

    def spellings(self):
        """Name -> file of the same LoRA in each of them."""
        alpha = torch.tensor(ALPHA)
        files = {name: {} for name in ("diffusers", "original", "comfyui", "kohya", "videox")}
        for layer, (a, b) in self.blocks().items():
            theirs = original(layer + ".weight").removesuffix(".weight")
            flat = theirs.replace(".", "_")
            folded = b * (ALPHA / RANK)
            files["diffusers"] |= {f"transformer.{layer}.lora_A.weight": a,
                                   f"transformer.{layer}.lora_B.weight": folded}
            files["original"] |= {f"{theirs}.lora_A.default.weight": a,
                                  f"{theirs}.lora_B.default.weight": folded}
            files["comfyui"] |= {f"diffusion_model.{theirs}.lora_down.weight": a,
                                 f"diffusion_model.{theirs}.lora_up.weight": b,
                                 f"diffusion_model.{theirs}.alpha": alpha}
            for name, prefix in (("kohya", "lora_unet_"), ("videox", "lora_unet__")):
                files[name] |= {f"{prefix}{flat}.lora_down.weight": a,
                                f"{prefix}{flat}.lora_up.weight": b,
                                f"{prefix}{flat}.alpha": alpha}
        return {name: self.write(name, tensors) for name, tensors in files.items()}

    @contextlib.contextmanager
    def changed(self, changes):
        """While it holds, tensors of diffusers' transformer are so much larger."""
        self.models.transformer.load_state_dict(
            {name: value + changes.get(name, 0) for name, value in self.state.items()})
        try:
            yield
        finally:
            self.models.transformer.load_state_dict(self.state)

    def frames(self, lora=None, **flags):
        if lora is not None:
            flags["lora"] = lora
        return self.ours(self.latents, **self.steps, **flags)

    def check_effect(self, images):
        plain = self.reference(self.latents, **self.steps)
        self.assertGreater(wan_checks.difference(images, plain), 2,
                           "the LoRA changes too little to prove anything")

    def test_every_spelling_gives_what_diffusers_makes_of_it(self):
        files = self.spellings()
        expected = {}
        for name in ("diffusers", "comfyui", "kohya"):  # those that diffusers converts
            self.pipeline.load_lora_weights(str(files[name]))
            expected[name] = self.reference(self.latents, **self.steps)
            self.pipeline.unload_lora_weights()
        self.check_effect(expected["diffusers"])
        for name, file in files.items():
            with self.subTest(name=name):
                compare.assert_images("wan, LoRA, " + name, self.frames(file),
                                      expected.get(name, expected["diffusers"]))
        compare.assert_images("wan, LoRA, merged", self.frames(files["videox"], lora_mode="merge"),
                              expected["diffusers"])

    def distilled(self):
        """A file as lightx2v's: factors, and whole differences of biases, norms, modulations and of
        the head. Returns what it changes in diffusers' transformer, too."""
        tensors, changes = {}, {}
        layers = self.factors([f"blocks.{i}.{layer}" for i in range(2) for layer in LINEARS] +
                              ["condition_embedder.time_proj"])
        for layer, (a, b) in layers.items():
            theirs = original(layer + ".weight").removesuffix(".weight")
            tensors |= {f"diffusion_model.{theirs}.lora_down.weight": a,
                        f"diffusion_model.{theirs}.lora_up.weight": b}
            changes[layer + ".weight"] = b @ a
        endings = {".bias": ".diff_b", ".modulation": ".diff_m", ".weight": ".diff"}
        for number, (name, value) in enumerate(self.state.items()):
            theirs = original(name)
            ending = next((e for e in endings if theirs.endswith(e)), None)
            if ending is None or name in changes or "patch" in name:
                continue
            change = self.random(value.shape, 0.1, 500 + number)
            tensors["diffusion_model." + theirs.removesuffix(ending) + endings[ending]] = change
            changes[name] = change
        return self.write("distilled", tensors), changes

    def test_whole_differences_are_added_hot_and_merged(self):
        file, changes = self.distilled()
        self.assertTrue(any(name.endswith(".diff_m") for name in load_file(file)))
        with self.changed(changes):
            expected = self.reference(self.latents, **self.steps)
        self.check_effect(expected)
        for mode in ("hot", "merge"):
            compare.assert_images("wan, LoRA, whole differences, " + mode,
                                  self.frames(file, lora_mode=mode), expected)
        with self.changed({name: change / 2 for name, change in changes.items()}):
            expected = self.reference(self.latents, **self.steps)
        compare.assert_images("wan, LoRA, whole differences, half", self.frames(f"{file}:0.5"),
                              expected)

    def test_its_forms_are_told(self):
        file, _ = self.distilled()
        with atelier.call_folder("lora_info") as folder:
            said = atelier.run(["lora", "info", file], folder)
        for part in ("LoRA 21", "difference", "diffusion_model.blocks.{}.modulation: 2",
                     "diffusion_model.head.modulation: 1"):
            self.assertIn(part, said)

    def test_a_pair_goes_to_its_experts(self):
        high, low = (self.write(f"style_{which}", {
            f"diffusion_model.{original(layer + '.weight').removesuffix('.weight')}.{key}.weight": value
            for layer, (a, b) in self.blocks().items()
            for key, value in (("lora_A", a), ("lora_B", b * size))
        }) for which, size in (("high", 0.3), ("low", -0.5)))
        with self.second_expert(0.8) as paths:
            flags = dict(num_inference_steps=4, flow_shift=5, switch_boundary=0.8)
            self.pipeline.load_lora_weights(str(high))
            self.pipeline.load_lora_weights(str(low), load_into_transformer_2=True)
            expected = self.reference(self.latents, shift=5.0, num_inference_steps=4)
            self.pipeline.unload_lora_weights()
            got = self.ours(self.latents, paths, lora=[f"{high}@dit", f"{low}:1@dit2"], **flags)
        compare.assert_images("wan, LoRA, a pair of two experts", got, expected)


def load_tests(loader, _tests, _pattern):
    names = [name for name in vars(WanLoraTest) if name.startswith("test_")]
    return unittest.TestSuite(WanLoraTest(name) for name in sorted(names))


if __name__ == "__main__":
    sys.exit(unittest.main())
