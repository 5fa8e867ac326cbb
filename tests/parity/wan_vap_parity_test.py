"""Video-As-Prompt: whole clips beside diffusers with a branch at every fourth block, and its training."""

import json
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image
from safetensors.torch import load_file

import atelier
import compare
import training
import wan_checks
import wan_models
import wan_train_parity_test
import wan_vap_models as vap
from wan_checks import probe

PROMPT, NEGATIVE, OF_CLIP, NEGATIVE_OF_CLIP = "a red kite over a harbour", "blurry", "a cat walks along a wall", "grey"
FRAMES, HEIGHT, WIDTH = 9, 48, 64


class WanVapTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.base, cls.branch = vap.make()
        cls.pipeline = cls.models.make_pipeline(WanImageToVideoPipeline, image_encoder=wan_models.make_image_encoder(),
                                                image_processor=wan_models.make_image_processor(), transformer=cls.base)
        cls.pipeline.save_pretrained(cls.dir / "model")
        vap.save(cls.base, cls.branch, cls.dir / "model/transformer")
        # Pillow scales images in whole numbers: that of the image encoder is not looked at here.
        patch = mock.patch.object(cls.pipeline, "encode_image", cls.encode_image)
        patch.start()
        cls.addClassCleanup(patch.stop)
        cls.first = wan_checks.picture(HEIGHT, WIDTH, 3)
        cls.clip = [wan_checks.picture(HEIGHT, WIDTH, 40 + i) for i in range(20)]
        (cls.dir / "clip").mkdir()
        for i, frame in enumerate(cls.clip):
            Image.fromarray(frame).save(cls.dir / f"clip/{i}.png")
        Image.fromarray(cls.first).save(cls.dir / "first.png")

    @classmethod
    def encode_image(cls, image, *_):
        image = image[0] if isinstance(image, list) else image  # without positions the last one is not looked at
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 127.5 - 1
        return probe("image_encoder", cls.dir / "model/image_encoder", {"image": pixels})["image_embeds"]

    def known(self, clip, has_last=False):
        """[1, 20, T, h, w]: which frames are known, and latents of the first one, nothing, and the last one."""
        shown = torch.zeros_like(clip)
        shown[:, :, :1] = clip[:, :, :1]
        if has_last:
            shown[:, :, -1:] = clip[:, :, -1:]
        latents = wan_models.encode(self.models.vae, shown)
        mask = torch.zeros_like(latents[:, :4])
        mask[:, :, 0] = 1
        mask[:, 3, -1] = float(has_last)
        return torch.cat([mask, latents], 1)

    @torch.no_grad()
    def of_branch(self, text, has_last=False):
        """What the branch is given."""
        frames = [self.clip[i] for i in torch.linspace(0, len(self.clip) - 1, FRAMES).long()]
        clip = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        return {
            "vap_clip": torch.cat([wan_models.encode(self.models.vae, clip), self.known(clip, has_last)], 1),
            "vap_embeds": self.pipeline.encode_prompt(text, None, False, max_sequence_length=512, device="cpu")[0],
            "vap_image_embeds": self.pipeline.encode_image(Image.fromarray(frames[0]), "cpu")
        }

    def test_clips_follow_the_clip_that_is_the_prompt(self):
        latents = wan_checks.noise(FRAMES, HEIGHT, WIDTH, seed=8)
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_frames=FRAMES,
                     num_inference_steps=3)
        negative = self.pipeline.encode_prompt(NEGATIVE, None, False, max_sequence_length=512, device="cpu")[0]
        with vap.beside(self.base, self.branch, self.of_branch(OF_CLIP), negative, self.of_branch(NEGATIVE_OF_CLIP)):
            expected = self.pipeline(image=Image.fromarray(self.first), latents=latents, output_type="np", **asked).frames[0]
        flags = dict(input_image=self.first, **asked)
        followed = dict(vap_video=self.dir / "clip", vap_prompt=OF_CLIP, negative_vap_prompt=NEGATIVE_OF_CLIP)
        got = wan_checks.generate(self.dir / "model", latents, **flags, **followed)
        compare.assert_images("wan, video as prompt", got, wan_models.rounded(expected), 0.01)
        plain = wan_checks.generate(self.dir / "model", latents, **flags)
        self.assertGreater(wan_checks.difference(got, plain), 1, "the clip proves nothing")
        other = wan_checks.generate(self.dir / "model", latents, **flags, vap_video=self.dir / "clip", vap_prompt=OF_CLIP)
        self.assertGreater(wan_checks.difference(got, other), 0.1, "the negative text proves nothing")
        # A last image is known to both.
        last = wan_checks.picture(HEIGHT, WIDTH, 4)
        Image.fromarray(last).save(self.dir / "last.png")
        with vap.beside(self.base, self.branch, self.of_branch(OF_CLIP, True), negative,
                        self.of_branch(NEGATIVE_OF_CLIP, True)):
            expected = self.pipeline(image=Image.fromarray(self.first), last_image=Image.fromarray(last), latents=latents,
                                     output_type="np", **asked).frames[0]
        got = wan_checks.generate(self.dir / "model", latents, **flags, **followed, end_image=self.dir / "last.png")
        compare.assert_images("wan, video as prompt, with a last image", got, wan_models.rounded(expected), 0.01)
        # Without the clip diffusers' denoiser runs as it is.
        alone = self.pipeline(image=Image.fromarray(self.first), latents=latents, output_type="np", **asked).frames[0]
        compare.assert_images("wan, video as prompt, without one", plain, wan_models.rounded(alone), 0.01)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        wan_checks.assert_ranks_agree("wan, video as prompt", self.dir / "model", prompt=PROMPT, height=HEIGHT, width=WIDTH,
                                      num_frames=FRAMES, input_image=self.dir / "first.png", vap_video=self.dir / "clip")

    def train(self, **flags):
        data = self.dir / "data"
        if not data.exists():
            (data / "video").mkdir(parents=True)
            for i in range(FRAMES):
                Image.fromarray(wan_checks.picture(HEIGHT, WIDTH, 60 + i)).save(data / f"video/{i}.png")
            (data / "clip").symlink_to(self.dir / "clip")
            (data / "metadata.csv").write_text(f"video,vap_video,prompt\nvideo,clip,{PROMPT}\n")
        defaults = dict(data_file_keys="video,vap_video", extra_inputs="vap_video,input_image", num_frames=FRAMES,
                        height=HEIGHT, width=WIDTH, dataset_base_path=data, dataset_metadata_path=data / "metadata.csv",
                        max_train_steps=1, num_epochs=1, learning_rate=1e-3, seed=42)
        rows = [(np.zeros((HEIGHT, WIDTH, 3), np.uint8), "unused")]
        return atelier.train(self.dir / "model", rows, plugin="wan", **defaults | flags)

    def loss(self, encoded):
        """That of the first step."""
        level = wan_train_parity_test.level_of(42, 0, 0, (0, 1000))
        sigma = torch.tensor(wan_train_parity_test.table()[[level]], dtype=torch.float32)
        clean = encoded["latents"]
        noise = training.normal_noise(training.stream_seed(42, training.NOISE), 0, 0, tuple(clean.shape))
        x = torch.cat([(1 - sigma) * clean + sigma * noise, encoded["given_clip"]])[None]
        velocity = vap.velocity(self.base, self.branch, x, 1000 * sigma,
                                wan_models.pad_prompts(encoded["prompt_embeds"][None]), encoded["image_embeds"][None],
                                {"vap_clip": torch.cat([encoded["vap_clip"], encoded["vap_known"]])[None],
                                 "vap_image_embeds": encoded["vap_image_embeds"][None],
                                 "vap_embeds": wan_models.pad_prompts(encoded["vap_embeds"][None])})
        return float(wan_train_parity_test.weights()[level]) * (velocity[0] - (noise - clean)).square().mean()

    def test_the_branch_learns_alone(self):
        """Its text is empty where a row has none."""
        parameters = vap.branch_parameters(self.branch)
        with self.train(trainable_models="vap") as run:
            item, = json.loads((run.folder / "cache/manifest.json").read_text())["items"]
            encoded = {}
            for stage in ("text", "first_image", "given_clip", "vap", "vap_text", "vap_image", "latents"):
                encoded |= load_file(run.folder / f"cache/{stage}/{item[stage]}.safetensors")
            empty = self.of_branch("")
            whole = torch.cat([encoded["vap_clip"], encoded["vap_known"]])
            compare.assert_close("wan, video as prompt, vap_clip", whole, empty["vap_clip"][0], 1e-5)
            compare.assert_close("wan, video as prompt, vap_embeds", encoded["vap_embeds"],
                                 empty["vap_embeds"][0, :len(encoded["vap_embeds"])])
            loss = self.loss(encoded)
            compare.assert_close("wan, video as prompt, losses", torch.tensor(run.losses()), loss.detach()[None], 1e-5)
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            state, expected = run.state(1, "optimizer"), {}
            for name, parameter, gradient in zip(parameters, parameters.values(), found):
                here = wan_train_parity_test.name_here("vap", name)
                expected[here] = torch.zeros_like(parameter) if gradient is None else gradient
            got = {name: state[name + ".exp_avg"] / 0.1 if name + ".exp_avg" in state else torch.zeros_like(value)
                   for name, value in expected.items()}
            compare.assert_all_close("wan, video as prompt, gradients", got, expected, 1e-4, 1e-3)
            self.assertEqual({vap.published_name(name) for name in parameters}, set(load_file(run.weights(1))))

    def test_a_lora_is_the_denoisers(self):
        """It is read again beside the branch: the clip is that of a denoiser which it was added to."""
        latents = wan_checks.noise(FRAMES, HEIGHT, WIDTH, seed=8)
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_frames=FRAMES,
                     num_inference_steps=2, input_image=self.first, vap_video=self.dir / "clip", vap_prompt=OF_CLIP)
        with self.train(lora_base_model="dit", lora_target_modules="q,k,v,o,ffn.0,ffn.2", lora_rank=2, learning_rate=0.1,
                        max_train_steps=2, num_epochs=2) as run:
            factors = load_file(run.weights(2))
            got = wan_checks.generate(self.dir / "model", latents, lora=run.weights(2), **asked)
        self.assertFalse([name for name in factors if "mot_ref" in name])
        merged, _ = vap.make()
        with torch.no_grad():
            for name in factors:
                if name.endswith(".lora_A.weight"):
                    layer = name.removesuffix(".lora_A.weight")
                    merged.get_parameter(layer.removeprefix("transformer.") + ".weight").add_(
                        factors[layer + ".lora_B.weight"] @ factors[name])
        vap.save(merged, self.branch, self.dir / "merged")
        paths = [self.dir / "merged", *(self.dir / "model" / part for part in
                                        ("text_encoder", "vae", "tokenizer", "image_encoder"))]
        compare.assert_images("wan, video as prompt, with a LoRA", got, wan_checks.generate(paths, latents, flow_shift=3, **asked),
                              0.01)
        self.assertGreater(wan_checks.difference(got, wan_checks.generate(self.dir / "model", latents, **asked)), 0.5)


if __name__ == "__main__":
    sys.exit(unittest.main())
