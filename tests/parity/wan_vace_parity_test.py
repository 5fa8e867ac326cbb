"""VACE of Wan: its blocks, whole clips from clips, masks and pictures, LoRAs on its layers and training
steps give what diffusers' WanVACETransformer3DModel and WanVACEPipeline give."""

import copy
import dataclasses
import json
import sys
import unittest
import zlib

import numpy as np
import torch
from diffusers import WanPipeline, WanTransformer3DModel, WanVACEPipeline, WanVACETransformer3DModel
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file

import atelier
import clip_cache
import compare
import references
import tiny_models
import wan_checks
import wan_models
import wan_train_parity_test as steps
from wan_checks import probe

PROMPT, NEGATIVE = "a red kite over a harbour", "blurry"
FRAMES, HEIGHT, WIDTH = 5, 48, 64
CLOSE = 0.01  # of 255
LAYERS, PLACES = 4, [0, 2, 3]
ORIGINAL = ((r"(vace_blocks\.\d+)\.proj_in", r"\1.before_proj"),
            (r"(vace_blocks\.\d+)\.proj_out", r"\1.after_proj"), *wan_models.ORIGINAL_DIT)


def make_vace(seed=201):
    """A denoiser and its VACE, as diffusers has them: one module."""
    vace = WanVACETransformer3DModel(num_attention_heads=2, attention_head_dim=16, in_channels=16, out_channels=16,
                                     text_dim=wan_models.TEXT_WIDTH, freq_dim=64, ffn_dim=80, num_layers=LAYERS,
                                     vace_layers=PLACES, vace_in_channels=96)
    return tiny_models.randomize_(vace, seed, overrides=[(r"scale_shift_table", 8.0)])


def without_vace(vace):
    """The denoiser alone."""
    config = {key: value for key, value in vace.config.items() if not key.startswith(("vace", "_"))}
    base = WanTransformer3DModel(**config)
    base.load_state_dict({key: value for key, value in vace.state_dict().items() if not key.startswith("vace")})
    return base.eval()


def original(name):
    """What the original repository calls a tensor of diffusers' module."""
    name, = wan_models.renamed({name: None}, ORIGINAL)
    return name


def only(tensors, start):
    return {name: tensor for name, tensor in tensors.items() if name.startswith(start)}


def smooth(size, seed):
    """Frames of which each is a smooth random picture."""
    return [Image.fromarray(wan_checks.picture(*size, seed + i)) for i in range(FRAMES)]


def grey_masks(size):
    """Masks with all grades of grey: a ramp that moves."""
    height, width = size
    ramp = np.linspace(0, 255, width)[None].repeat(height, 0)
    return [Image.fromarray(np.roll(ramp, 9 * i, 1).round().astype(np.uint8)).convert("RGB") for i in range(FRAMES)]


class Vace(wan_checks.FolderTest):
    """A tiny model in both published spellings."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.vace = make_vace()
        cls.folder = cls.models.folder_with(cls.dir / "model", transformer=cls.vace)
        cls.file = cls.write_original(cls.vace, cls.dir / "original")

    @classmethod
    def write_original(cls, vace, folder):
        """One file of a denoiser and its VACE, as original repositories have it."""
        folder.mkdir()
        vace.save_config(folder)
        file = folder / "diffusion_pytorch_model.safetensors"
        save_file(tiny_models.contiguous(wan_models.renamed(vace.state_dict(), ORIGINAL)), file)
        return file

    @classmethod
    def make_pipeline(cls, vace, kind=WanVACEPipeline, **more):
        return cls.models.make_pipeline(kind, transformer=vace, **more)

    @classmethod
    def with_encoders(cls, *files):
        return [*files, *(cls.folder / name for name in ("text_encoder", "vae", "tokenizer"))]


class VaceBlocksTest(Vace):

    def inputs(self):
        generator = torch.Generator().manual_seed(3)

        def draw(*shape):
            return torch.randn(shape, generator=generator)
        return {"rows": draw(2, 2 * 3 * 4, 32), "control": draw(2, 96, 2, 6, 8), "time": draw(2, 6 * 32),
                "text": draw(2, 9, 32)}

    def test_hints_and_gradients_are_those_of_diffusers_in_both_spellings(self):
        inputs = self.inputs()
        floating = wan_checks.with_gradients(inputs)
        expected = wan_models.vace_hints(self.vace, **floating)
        parameters = only(dict(self.vace.named_parameters()), "vace")
        wanted = references.gradients(expected, floating, parameters)
        got = probe("vace", self.folder / "transformer", inputs, gradients=True, trainable="*")
        compare.assert_close("wan, VACE, hints", got["hints"], expected, 1e-5)
        compare.assert_gradients("wan, VACE, gradients", got, wanted)
        got = probe("vace", self.file, inputs)
        compare.assert_close("wan, VACE, hints, original spelling", got["hints"], expected, 1e-5)

    def test_the_denoiser_in_its_file_is_the_denoiser(self):
        generator = torch.Generator().manual_seed(4)
        inputs = {"latents": torch.randn((1, 16, 2, 6, 8), generator=generator), "sigma": torch.tensor([0.7]),
                  "prompt_embeds": torch.randn((1, 7, wan_models.TEXT_WIDTH), generator=generator)}
        with torch.no_grad():
            expected = wan_models.velocity(without_vace(self.vace), **inputs)
        for path in (self.folder / "transformer", self.file):
            got = probe("dit", path, inputs)["velocity"]
            compare.assert_close("wan, VACE, its denoiser alone", got, expected, 1e-5)


class VaceClipsTest(Vace):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.dir / "data"
        cls.clip, cls.masks = smooth((HEIGHT, WIDTH), 11), grey_masks((HEIGHT, WIDTH))
        for name, frames in (("clip", cls.clip), ("masks", cls.masks)):
            (cls.data / name).mkdir(parents=True)
            for i, frame in enumerate(frames):
                frame.save(cls.data / name / f"{i}.png")
        # Wider, higher and larger than the clip: sides are multiples of 8, to which diffusers rounds them.
        cls.pictures = [Image.fromarray(wan_checks.picture(h, w, seed)) for h, w, seed in ((24, 88, 21), (104, 40, 22))]
        for i, picture in enumerate(cls.pictures):
            picture.save(cls.data / f"{i}.png")
        cls.pipeline = cls.make_pipeline(cls.vace)

    def noise(self, pictures=0, seed=31):
        return wan_checks.noise(FRAMES + 4 * pictures, HEIGHT, WIDTH, seed)

    def expected(self, pictures=0, pipeline=None, steps=3, **options):
        video = (pipeline or self.pipeline)(
            prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_frames=FRAMES,
            latents=self.noise(pictures), num_inference_steps=steps, output_type="np", **options)
        return wan_models.rounded(video.frames[0])

    def ours(self, pictures=0, paths=None, steps=3, **flags):
        return wan_checks.generate(paths or self.folder, self.noise(pictures), prompt=PROMPT, negative_prompt=NEGATIVE,
                                   height=HEIGHT, width=WIDTH, num_frames=FRAMES, num_inference_steps=steps, seed=0,
                                   **flags)

    def check(self, name, ours, expected):
        compare.assert_images("wan, VACE, " + name, ours, expected, CLOSE)

    def images(self, count):
        return [self.data / f"{i}.png" for i in range(count)]

    def test_clips_that_follow_a_clip(self):
        self.check("clips from a clip", self.ours(vace_video=self.data / "clip"), self.expected(video=self.clip))

    def test_a_mask_of_greys_and_pictures_of_other_shapes(self):
        # Of several pictures diffusers puts the last one first; the original repository does not.
        expected = self.expected(pictures=2, video=self.clip, mask=self.masks, reference_images=self.pictures[::-1],
                                 conditioning_scale=[1.0, 0.25, 1.5])
        asked = dict(vace_video=self.data / "clip", vace_video_mask=self.data / "masks",
                     vace_reference_image=self.images(2), vace_scale="1,0.25,1.5")
        self.check("clips from a clip, a mask and two pictures", self.ours(2, **asked), expected)
        self.check("the same in the original spelling", self.ours(2, self.with_encoders(self.file), **asked), expected)
        # Scales count block by block, and pictures in their order.
        others = [self.ours(2, **asked | {"vace_scale": "0.25,1,1.5"}),
                  self.ours(2, **asked | {"vace_reference_image": self.images(2)[::-1]})]
        for other in others:
            self.assertGreater(wan_checks.difference(other, expected), 0.1)

    def test_greys_of_a_mask_count_as_they_are(self):
        """The clip is parted where the mask is white, and the blocks read the mask's greys; DiffSynth-Studio
        parts by them, too."""
        asked = dict(vace_video=self.data / "clip")
        grey = self.ours(vace_video_mask=self.data / "masks", **asked)
        self.check("clips with a mask", grey, self.expected(video=self.clip, mask=self.masks))
        hard = self.data / "hard"
        hard.mkdir()
        for i, mask in enumerate(self.masks):
            mask.point(lambda value: 255 if value > 127 else 0).save(hard / f"{i}.png")
        self.assertGreater(wan_checks.difference(grey, self.ours(vace_video_mask=hard, **asked)), 0.1)

    def test_a_picture_is_a_mask_of_all_frames(self):
        mask = self.masks[2]
        mask.save(self.data / "mask.png")
        got = self.ours(vace_video=self.data / "clip", vace_video_mask=self.data / "mask.png")
        self.check("clips with one mask", got, self.expected(video=self.clip, mask=[mask] * FRAMES))

    def test_pictures_alone(self):
        self.check("clips from a picture", self.ours(1, vace_reference_image=self.images(1), vace_scale=0.7),
                   self.expected(pictures=1, reference_images=self.pictures[:1], conditioning_scale=0.7))

    def test_without_anything_to_follow_the_base_runs_alone(self):
        base = self.make_pipeline(without_vace(self.vace), WanPipeline)
        got = self.ours()
        self.check("clips from nothing", got, self.expected(pipeline=base))
        none = self.ours(vace_video=self.data / "clip", vace_scale="0,0,0")
        self.assertEqual(0, wan_checks.difference(got, none), "hints that do not count change the clip")
        self.assertGreater(wan_checks.difference(got, self.ours(vace_video=self.data / "clip")), 1)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        """27 rows of the clip and its picture, an odd number of them."""
        wan_checks.assert_ranks_agree("wan, VACE", self.folder, prompt=PROMPT, height=48, width=48, num_frames=FRAMES,
                                      vace_video=self.data / "clip", vace_reference_image=self.data / "0.png")

    def test_two_experts_have_a_vace_each(self):
        low = make_vace(seed=202)
        repository = self.models.folder_with(self.dir / "Wan2.2-VACE-Fun-A14B")
        for name, expert in (("high_noise_model", self.vace), ("low_noise_model", low)):
            self.write_original(expert, repository / name)

        def expected():
            pipeline = self.make_pipeline(self.vace, transformer_2=low, boundary_ratio=0.875)
            return self.expected(pictures=1, pipeline=pipeline, steps=4, video=self.clip,
                                 reference_images=self.pictures[:1])

        def ours(**flags):
            return self.ours(1, repository, steps=4, vace_video=self.data / "clip", vace_reference_image=self.images(1),
                             **flags)
        self.check("clips of two experts", ours(), expected())
        # A LoRA for an expert is one for the VACE beside it.
        a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(9)) for shape in ((2, 32), (32, 2)))
        layer = "vace_blocks.1.attn1.to_v"
        save_file({f"transformer.{layer}.lora_A.weight": a, f"transformer.{layer}.lora_B.weight": b},
                  self.dir / "learnt.safetensors")
        low.get_parameter(layer + ".weight").data += b @ a
        self.check("clips of two experts with a LoRA", ours(lora=f"{self.dir}/learnt.safetensors@dit2"), expected())
        with self.assertRaisesRegex(atelier.ProgramFailed, "is a layer of .vace., .vace2."):
            ours(lora=self.dir / "learnt.safetensors")

    def test_loras_reach_its_layers(self):
        changed = copy.deepcopy(self.vace)
        tensors = {}
        layers = [(f"{blocks}.{i}.{layer}") for blocks, count in (("blocks", LAYERS), ("vace_blocks", len(PLACES)))
                  for i in range(count) for layer in ("attn1.to_q", "attn2.to_out.0", "ffn.net.0.proj")]
        for number, layer in enumerate(layers):
            generator = torch.Generator().manual_seed(number)
            weight = changed.get_parameter(layer + ".weight")
            a = 0.3 * torch.randn((2, weight.shape[1]), generator=generator)
            b = 0.3 * torch.randn((weight.shape[0], 2), generator=generator)
            weight.data += b @ a
            theirs = original(layer + ".weight").removesuffix(".weight")
            for prefix, own in (("transformer.", layer), ("diffusion_model.", theirs)):
                tensors.setdefault(prefix, {}).update(
                    {f"{prefix}{own}.lora_A.weight": a, f"{prefix}{own}.lora_B.weight": b})
        expected = self.expected(pipeline=self.make_pipeline(changed), video=self.clip)
        for prefix, values in tensors.items():
            file = self.dir / f"{prefix}safetensors"
            save_file(values, file)
            got = self.ours(vace_video=self.data / "clip", lora=file)
            compare.assert_images("wan, VACE, clips with a LoRA", got, expected, CLOSE)
        self.assertGreater(wan_checks.difference(got, self.ours(vace_video=self.data / "clip")), 1)


@dataclasses.dataclass
class Sample(steps.Sample):
    """What is followed, too: [80 or 96, T, h, w] of the clip, and latents of pictures [16, n, h, w]."""
    vace_clip: torch.Tensor | None = None
    references: torch.Tensor | None = None

    def control(self):
        pictures = torch.nn.functional.pad(self.references, (0,) * 6 + (0, 80))
        return torch.cat([pictures, self.vace_clip], 1)


class VaceTrainTest(Vace, steps.Steps):
    """The weights of `vace` alone are trained, and their loss counts the pictures in front of the clip."""

    PICTURES = [["1/0.png"], ["0/1.png", "2/2.png"], ["1/3.png"]]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cache = clip_cache.make(
            cls.dir / "encoded", "wan", cls.folder, steps.PROMPTS, steps.FRAMES, steps.HEIGHT, steps.WIDTH,
            "--extra_inputs", "vace_video,vace_reference_image",
            columns={"vace_video": ["1", "2", "0"], "vace_reference_image": cls.PICTURES})
        cls.samples = []
        for item in json.loads((cls.cache / "manifest.json").read_text())["items"]:
            made = {stage: load_file(cls.cache / stage / f"{item[stage]}.safetensors")
                    for stage in ("latents", "text", "vace")}
            cls.samples.append(Sample(made["latents"]["latents"], made["text"]["prompt_embeds"],
                                      vace_clip=made["vace"]["vace_clip"], references=made["vace"]["vace_references"]))

    def test_one_clip_with_two_pictures_has_two_entries(self):
        """What is learnt of both rows has another picture in front."""
        data = self.dir / "encoded"
        rows = [{"video": "0", "prompt": "a clip", "vace_video": "1", "vace_reference_image": [picture]}
                for picture in ("1/0.png", "2/0.png")]
        (data / "shared.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        atelier.run(["cache", "--plugin", "wan", "--model_paths", atelier.paths_argument(self.folder), "--dataset_base_path",
                     data, "--dataset_metadata_path", data / "shared.jsonl", "--num_frames", steps.FRAMES, "--dtype",
                     "float32", "--extra_inputs", "vace_video,vace_reference_image", "--output_path",
                     self.dir / "shared"], self.dir)
        items = json.loads((self.dir / "shared/cache/manifest.json").read_text())["items"]
        self.assertNotEqual(items[0]["latents"], items[1]["latents"])

    def velocity(self, vace, samples, noisy, sigma, embeds, lengths, first):
        control = torch.stack([sample.control() for sample in samples])
        return vace(hidden_states=noisy, timestep=1000 * sigma, control_hidden_states=control,
                    encoder_hidden_states=wan_models.pad_prompts(embeds, lengths), return_dict=False)[0]

    @staticmethod
    def parameters(transformers):
        name, = transformers
        return {
            f"{name}.{original(path.replace('.default.weight', ''))}": parameter
            for path, parameter in transformers[name].named_parameters() if parameter.requires_grad}

    def pixels(self, path):
        image = torch.from_numpy(np.array(Image.open(self.dir / "encoded" / path))).permute(2, 0, 1)
        return image[None, :, None] / 127.5 - 1

    def test_pictures_are_learnt_in_front_of_the_clip_each_alone(self):
        """DiffSynth-Studio makes one latent frame of several, as of frames of a clip."""
        for number, sample in enumerate(self.samples):
            clip = torch.cat([self.pixels(f"{number}/{i}.png") for i in range(steps.FRAMES)], 2)
            with torch.no_grad():
                latents = [wan_models.encode(self.models.vae, self.pixels(path)) for path in self.PICTURES[number]]
                expected = torch.cat([*latents, wan_models.encode(self.models.vae, clip)], 2)[0]
            compare.assert_close("wan, VACE, what is learnt", sample.latents, expected, 1e-5)
            compare.assert_close("wan, VACE, pictures", sample.references, torch.cat(latents, 2)[0], 1e-5)

    def test_steps_of_the_vace_alone_are_those_of_diffusers(self):
        vace = make_vace()
        for name, parameter in vace.named_parameters():
            parameter.requires_grad_(name.startswith("vace"))
        with self.both("wan, VACE, training", {"vace": vace}, {"vace": (0, 1000)}, self.folder, steps=3,
                       trainable_models="vace", extra_inputs="vace_video,vace_reference_image") as (run, _):
            # The file that is saved takes the place of what the published one holds.
            saved, = run.folder.glob("step-3*.safetensors")
            with torch.no_grad():
                pictures = Image.open(self.dir / "encoded/1/0.png")
                expected = self.make_pipeline(vace)(
                    prompt=PROMPT, negative_prompt=NEGATIVE, height=steps.HEIGHT, width=steps.WIDTH, num_frames=5,
                    latents=wan_checks.noise(9, steps.HEIGHT, steps.WIDTH, 7), num_inference_steps=2, output_type="np",
                    reference_images=[pictures]).frames[0]
            got = wan_checks.generate([self.folder, saved], wan_checks.noise(9, steps.HEIGHT, steps.WIDTH, 7),
                                      prompt=PROMPT, negative_prompt=NEGATIVE, height=steps.HEIGHT, width=steps.WIDTH,
                                      num_frames=5, num_inference_steps=2, seed=0,
                                      vace_reference_image=self.dir / "encoded/1/0.png")
            compare.assert_images("wan, VACE, clips of what was trained", got, wan_models.rounded(expected), CLOSE)

    def test_steps_of_a_lora_on_the_vace_are_those_of_peft(self):
        vace = make_vace().requires_grad_(False)
        ends = r"vace_blocks\..*(to_[qkv]|to_out\.0|ffn\.net\.0\.proj|ffn\.net\.2)"
        vace.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=ends))
        with torch.no_grad():
            for name, parameter in self.parameters({"vace": vace}).items():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.copy_(0.08 * torch.randn(parameter.shape, generator=generator))
        start = {"transformer." + name: value for name, value in get_peft_model_state_dict(vace).items()}
        start |= {name.replace("lora_A.weight", "alpha"): torch.tensor(8.0) for name in start if ".lora_A." in name}
        save_file(tiny_models.contiguous(start), self.dir / "start.safetensors")
        with self.both("wan, VACE, training, LoRA", {"vace": vace}, {"vace": (0, 1000)}, self.folder, steps=2,
                       lora_base_model="vace", lora_target_modules=steps.TARGETS, lora_rank=4, lora_alpha=8,
                       lora_checkpoint=self.dir / "start.safetensors",
                       extra_inputs="vace_video,vace_reference_image"):
            pass


if __name__ == "__main__":
    sys.exit(unittest.main())
