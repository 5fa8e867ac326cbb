"""Z-Image, a family out of tree: what diffusers and transformers give, and every power of the host."""
import json
import unittest

import numpy as np
import torch
from gguf.constants import MODEL_ARCH
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

import atelier
import compare
import llama_cpp_parity_test as llama_cpp
import tiny_models
import z_image_models
from program import run
from tiny_run import FolderTest

PROMPT = "A coffee shop entrance with a chalkboard sign, 一只可爱的猫, cinematic lighting"
NEGATIVE = "blurry, 低画质"
EXACT = 1e-5
TARGETS = "to_q,to_k,to_v,to_out.0,w1,w2,w3"  # as DiffSynth-Studio's script has them


def noise(count, height, width, seed):
    return torch.randn((count, 16, 1, height // 8, width // 8), generator=torch.Generator().manual_seed(seed))


class ZImageTest(FolderTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = z_image_models.get()
        cls.plugin = str(cls.models.plugin)

    def probe(self, component, paths, inputs, **options):
        return atelier.probe(component, paths, inputs, plugin=self.plugin, **options)

    def reference(self, latents, height, width, steps, shift=3.0, **options):
        images = self.models.pipeline_of(shift)(
            options.pop("prompt", PROMPT), height=height, width=width, num_inference_steps=steps,
            num_images_per_prompt=len(latents), latents=latents[:, :, 0], output_type="np", **options).images
        return list((images * 255).round().astype(np.uint8))

    def ours(self, latents, height, width, steps, paths=None, **flags):
        flags = dict(prompt=PROMPT, height=height, width=width, num_inference_steps=steps, seed=0,
                     num_images=len(latents), dtype="float32") | flags
        return atelier.generate(paths or self.models.turbo, latents, plugin=self.plugin, **flags)


class Components(ZImageTest):
    @staticmethod
    def inputs(batch=3, height=3, width=5, length=37, seed=31):
        generator = torch.Generator().manual_seed(seed)
        return {
            "latents": torch.randn((batch, 16, 1, 2 * height, 2 * width), generator=generator),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": torch.randn((batch, length, z_image_models.TEXT_WIDTH), generator=generator),
            "prompt_lengths": torch.tensor([37, 4, 32])[:batch],
        }

    def expected(self, inputs):
        return z_image_models.velocity(self.models.transformer, inputs["latents"], inputs["sigma"],
                                       inputs["prompt_embeds"], inputs["prompt_lengths"])

    def test_velocities_are_those_of_diffusers_in_every_spelling(self):
        for inputs in (self.inputs(), self.inputs(1, 4, 8), self.inputs(1, 1, 1)):
            with torch.no_grad():
                expected = self.expected(inputs)
            for name, path in (("diffusers", self.models.turbo / "transformer"),
                               ("comfy", self.models.root / "comfy.safetensors")):
                compare.assert_close("z_image, denoiser, " + name, self.probe("dit", path, inputs)["velocity"], expected,
                                     EXACT)

    def test_gradients_are_those_of_diffusers(self):
        inputs = self.inputs()
        got = self.probe("dit", self.models.turbo / "transformer", inputs, gradients=True, trainable="*")
        floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items() if value.is_floating_point()}
        self.models.transformer.zero_grad()
        self.models.transformer.requires_grad_(True)
        self.expected({**inputs, **floating}).square().sum().div(2).backward()
        wanted = {"grad." + key: value.grad for key, value in floating.items()}
        wanted |= {"grad." + key: value.grad for key, value in self.models.transformer.named_parameters()}
        compare.assert_gradients("z_image, denoiser", got, wanted, dict.fromkeys(wanted, EXACT))

    def test_the_text_encoder_gives_the_state_in_front_of_its_last_layer(self):
        ids = torch.randint(0, 1000, (2, 23), generator=torch.Generator().manual_seed(3))
        lengths = torch.tensor([23, 9])
        mask = torch.arange(23)[None] < lengths[:, None]
        with torch.no_grad():
            states = self.models.text_encoder(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True)
        got = self.probe("text_encoder", self.models.turbo / "text_encoder", {"input_ids": ids, "lengths": lengths})
        compare.assert_close("z_image, text encoder", got["hidden"], states.hidden_states[-2] * mask[..., None], EXACT)

    def test_images_and_latents_are_those_of_the_vae(self):
        image = torch.rand((2, 3, 48, 64), generator=torch.Generator().manual_seed(4)) * 2 - 1
        with torch.no_grad():
            mean = self.models.vae.encode(image).latent_dist.mode()
            latents = ((mean - 0.1159) * 0.3611)[:, :, None]
            decoded = self.models.vae.decode(mean).sample.clamp(-1, 1)
        vae = self.models.turbo / "vae"
        compare.assert_close("z_image, encoded", self.probe("vae", vae, {"image": image})["latents"], latents, EXACT)
        compare.assert_close("z_image, decoded", self.probe("vae", vae, {"latents": latents})["image"], decoded, EXACT)

    def test_the_suite_compares_with_the_reference(self):
        inputs = self.inputs()
        with torch.no_grad():
            velocity = self.expected(inputs)
        for sign, code in ((1, 0), (-1, 3)):
            save_file({**inputs, "expected.velocity": (sign * velocity).contiguous()}, self.dir / "dit.safetensors",
                      {"component": "dit"})
            said = run("check-plugin", self.plugin, "--model_paths", atelier.paths_argument(self.models.turbo),
                       "--reference", self.dir / "dit.safetensors", "--tolerance", EXACT, code=code).stdout
            self.assertIn("reference: dit.velocity: " + ("its sign is turned" if sign < 0 else ""), said)


class Pictures(ZImageTest):
    def test_turbo_makes_the_pictures_of_diffusers(self):
        latents = noise(2, 64, 96, seed=41)
        expected = self.reference(latents, 64, 96, 4, guidance_scale=0.0)
        other = self.reference(latents, 64, 96, 4, guidance_scale=0.0, prompt="red")
        self.assertGreater(np.abs(np.asarray(expected, float) - np.asarray(other, float)).mean(), 5)
        for name, paths in (("diffusers", self.models.turbo), ("comfy", self.models.comfy())):
            compare.assert_images("z_image, turbo, " + name, self.ours(latents, 64, 96, 4, paths), expected, 0.001)

    def test_guided_pictures_of_the_base_model_are_those_of_diffusers(self):
        latents = noise(1, 48, 64, seed=42)
        for name, here, there in (
            ("plain", {}, {}),
            ("clamped", dict(cfg_renorm="clamp"), dict(cfg_normalization=True)),
            ("truncated", dict(cfg_trunc=0.3), dict(cfg_truncation=0.3)),
            ("unguided", dict(cfg_scale=0), dict(guidance_scale=0.0)),
        ):
            expected = self.reference(latents, 48, 64, 5, 6.0, **{"guidance_scale": 4.0, "negative_prompt": NEGATIVE, **there})
            got = self.ours(latents, 48, 64, 5, self.models.base, negative_prompt=NEGATIVE, **here)
            compare.assert_images("z_image, base, " + name, got, expected, 0.002)

    def test_a_text_encoder_in_gguf_gives_its_picture(self):
        folder = self.root / "gguf"
        folder.mkdir()
        encoder = self.models.text_encoder
        encoder.config.save_pretrained(folder)
        values = {name: value for name, value in encoder.state_dict().items() if name != "lm_head.weight"}
        llama_cpp.write(folder / "encoder.gguf", MODEL_ARCH.QWEN3, values, llama_cpp.KINDS.F32)
        latents = noise(1, 64, 96, seed=44)
        others = [self.models.turbo / name for name in ("transformer", "vae", "tokenizer")]
        got = self.ours(latents, 64, 96, 2, paths=[folder, *others])
        self.assertTrue(np.array_equal(got, self.ours(latents, 64, 96, 2)))

    def test_the_scheduler_of_the_folder_tells_the_models_apart(self):
        for folder, variant in ((self.models.turbo, "z-image-turbo"), (self.models.base, "z-image")):
            with self.subTest(variant=variant):
                told = run("inspect", folder / "transformer", "--plugin", self.plugin, code=0).stdout
                self.assertIn(f"variant {variant},", told)

    def test_a_lora_of_diffusers_gives_its_picture(self):
        latents = noise(1, 48, 64, seed=43)
        plain = self.reference(latents, 48, 64, 3, guidance_scale=0.0)
        transformer = z_image_models.make_transformer()
        transformer.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_v", "to_out.0", "w1"]))
        tiny_models.randomize_(transformer, 81, overrides=[("lora_", 0.6)])
        self.models.pipeline.save_lora_weights(self.dir, transformer_lora_layers=get_peft_model_state_dict(transformer),
                                               weight_name="style.safetensors")
        expected = self.with_lora(self.dir / "style.safetensors", latents)
        self.assertGreater(np.abs(np.asarray(expected, float) - np.asarray(plain, float)).mean(), 1)
        got = self.ours(latents, 48, 64, 3, lora=self.dir / "style.safetensors")
        compare.assert_images("z_image, LoRA of diffusers", got, expected, 0.002)

    def with_lora(self, path, latents):
        self.models.pipeline.load_lora_weights(path, adapter_name="one")
        try:
            return self.reference(latents, 48, 64, 3, guidance_scale=0.0)
        finally:
            self.models.pipeline.unload_lora_weights()


class Powers(ZImageTest):
    """What the host does for any family."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        save_file({"latents": noise(1, 64, 64, seed=44)}, cls.root / "noise.safetensors")
        random = np.random.default_rng(5)
        atelier.write_dataset(cls.root / "data", [
            (random.integers(0, 256, (64, 64, 3), dtype=np.uint8), f"a picture of number {i}") for i in range(4)])
        cls.plain = cls.picture()

    @classmethod
    def line(cls, *words, **flags):
        """A command's words on the model."""
        flags = {"plugin": cls.plugin, "model_paths": atelier.paths_argument(cls.models.turbo), **flags}
        given = [["--" + name] if value is True else ["--" + name, value] for name, value in flags.items() if value is not None]
        return [*words, *(word for pair in given for word in pair)]

    @classmethod
    def picture(cls, *launch, **flags):
        """The pixels of one picture, drawn from the same noise, float64."""
        out = cls.root / "out.png"
        out.unlink(missing_ok=True)
        flags = dict(prompt=PROMPT, height=64, width=64, num_inference_steps=3, dtype="float32", device="cpu", threads=1,
                     latents=cls.root / "noise.safetensors", output=out) | flags
        run(*cls.line(*launch, "generate", **flags), code=0)
        return atelier.read_pictures([out])[0].astype(np.float64)

    def train(self, name, *launch, **flags):
        """Trains a LoRA for two steps, and returns the run's folder."""
        flags = dict(dataset_base_path=self.root / "data", dataset_metadata_path=self.root / "data/metadata.csv",
                     device="cpu", threads=1, dtype="float32", lora_base_model="dit", lora_rank=4, learning_rate=1e-3,
                     adam_epsilon=1e-3, global_batch_size=4, batch_size=4, max_train_steps=2, save_steps=1,
                     checkpoints_total_limit=0, output_path=self.dir / name) | flags
        run(*self.line(*launch, "train", **flags), code=0)
        return self.dir / name

    def assert_same_lora(self, run_folder, other, error=0.0):
        ours, theirs = (load_file(folder / "step-2.safetensors") for folder in (run_folder, other))
        self.assertEqual(set(ours), set(theirs))
        for name, value in ours.items():
            self.assertLessEqual(compare.relative_error(value, theirs[name], 1e-3), error, name)

    def test_pictures_do_not_change_with_where_weights_rest_or_who_computes(self):
        halves = ("launch", "--nproc_per_node", 2, "--")
        for launch, flags in (((), dict(vram="64MiB", device="simulated")),
                              ((), dict(offload="dit=host,text_encoder=disk", device="simulated")),
                              (halves, dict(sequence_parallel=2))):
            with self.subTest(**flags):
                self.assertLess(np.abs(self.picture(*launch, **flags) - self.plain).mean(), 0.001)

    def test_weights_of_8_bits_are_near(self):
        for storage in ("fp8", "int8"):
            difference = np.abs(self.picture(storage=f"dit={storage},text_encoder={storage}") - self.plain).mean()
            self.assertTrue(0 < difference < 8, (storage, difference))

    def test_a_plan_is_made_without_values(self):
        for words, flags in ((("plan", "generate"), dict(prompt=PROMPT)),
                             (("plan", "train"), dict(dataset_base_path=self.root / "data", lora_base_model="dit",
                                                      dataset_metadata_path=self.root / "data/metadata.csv"))):
            with self.subTest(words=words):
                file = self.dir / "plan.json"
                run(*self.line(*words, vram="64MiB", json=file, height=64, width=64, **flags), code=0)
                self.assertIn("denoise" if words[1] == "generate" else "train", json.dumps(json.loads(file.read_text())))

    def test_a_trained_lora_is_the_same_however_it_is_trained(self):
        plain = self.train("plain")
        self.assert_same_lora(self.train("budget", activation_memory_budget="full"), plain)
        self.assert_same_lora(self.train("vram", device="simulated", vram="64MiB"), plain)
        first = self.train("resumed", max_train_steps=1)
        run("train", "--resume", first, "--max_train_steps", 2, code=0)
        self.assert_same_lora(first, plain)
        ranks = ("launch", "--nproc_per_node", 2, "--")
        self.assert_same_lora(self.train("ranks", *ranks, batch_size=2, zero_stage=3), plain, 1e-3)
        self.assert_same_lora(self.train("rows", *ranks, sequence_parallel=2), plain, 1e-3)

    def test_published_scripts_are_answered(self):
        """The lines of DiffSynth-Studio's scripts for Z-Image, LoRA and full training."""
        model = "Tongyi-MAI/Z-Image-Turbo:"
        common = ["--dataset_base_path", "data", "--dataset_metadata_path", "data/metadata.csv", "--max_pixels", "1048576",
                  "--dataset_repeat", "50", "--model_id_with_origin_paths",
                  f"{model}transformer/*.safetensors,{model}text_encoder/*.safetensors,"
                  f"{model}vae/diffusion_pytorch_model.safetensors", "--learning_rate", "1e-4", "--num_epochs", "5",
                  "--remove_prefix_in_ckpt", "pipe.dit.", "--output_path", "out", "--use_gradient_checkpointing",
                  "--dataset_num_workers", "8"]
        for own in (["--lora_base_model", "dit", "--lora_target_modules", TARGETS, "--lora_rank", "32"],
                    ["--trainable_models", "dit"]):
            told = run("accelerate", "launch", "examples/z_image/model_training/train.py", *common, *own, code=0,
                       ATELIER_PLUGIN_PATH=str(self.models.plugin.parent)).stdout
            for words in ("atelier train", "--plugin z_image", " ".join(own[:2]), "--num_epochs 5"):
                self.assertIn(words, told)

    def test_a_trained_lora_gives_its_picture_in_diffusers(self):
        lora = self.train("learns", learning_rate=0.05, lora_target_modules=TARGETS) / "step-2.safetensors"
        run(*self.line("lora", "convert", lora, self.dir / "there.safetensors", lora_format="diffusers"), code=0)
        pipeline = self.models.pipeline_of(3.0)
        pipeline.load_lora_weights(self.dir / "there.safetensors", adapter_name="one")
        try:
            latents = load_file(self.root / "noise.safetensors")["latents"]
            expected = self.reference(latents, 64, 64, 3, guidance_scale=0.0)[0]
        finally:
            pipeline.unload_lora_weights()
        got = self.picture(lora=lora)
        self.assertGreater(np.abs(got - self.plain).mean(), 1)
        compare.assert_images("z_image, trained LoRA in diffusers", [got.astype(np.uint8)], [expected], 0.001)


if __name__ == "__main__":
    unittest.main()
