"""ControlNets beside the denoiser give the images of diffusers: InstantX's by its pipelines, and blockwise
ones by hooks on its denoiser, whose maths is written down here."""

import itertools
import json
import re
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import QwenImageControlNetInpaintPipeline, QwenImageControlNetModel, QwenImageControlNetPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.qwenimage import pipeline_qwenimage_controlnet
from PIL import Image
from safetensors.torch import load_file, save_file

import atelier
import compare
import edit_models
import program
import references
import tiny_models
import train_parity_test as steps
import training
from pipeline_parity_test import NEGATIVE, PROMPT, levels, noise, smooth_picture
from tiny_run import FolderTest

HEIGHT, WIDTH, STEPS, SCALE = 64, 96, 4, 3.0


class Norm(torch.nn.RMSNorm):
    """Rounds before it multiplies by its weight, as DiffSynth-Studio's does."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class BlockwiseNet(torch.nn.Module):
    """A blockwise ControlNet: behind block i, image += scale * out_i(gelu(in_i(rms(image) + rms(picture))))."""

    def __init__(self, layers, width, channels):
        super().__init__()
        self.img_in = torch.nn.Linear(4 * channels, width)
        self.controlnet_blocks = torch.nn.ModuleList()
        for _ in range(layers):
            block = torch.nn.Module()
            block.x_rms, block.y_rms = (Norm(width, eps=1e-6) for _ in range(2))
            block.input_proj, block.output_proj = (torch.nn.Linear(width, width) for _ in range(2))
            self.controlnet_blocks.append(block)

    def residual(self, number, image, picture):
        block = self.controlnet_blocks[number]
        seen = block.input_proj(block.x_rms(image) + block.y_rms(picture))
        return block.output_proj(torch.nn.functional.gelu(seen))


def mask_of():
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[13:43, 30:] = 255
    mask[-9:, :40] = 100  # is not made anew where masks are black or white alone
    return mask


def make_instantx(transformer, folder, seed, layers=1, extra=0):
    net = QwenImageControlNetModel.from_transformer(
        transformer, num_layers=layers, attention_head_dim=transformer.config.attention_head_dim,
        num_attention_heads=transformer.config.num_attention_heads, load_weights_from_transformer=False,
        extra_condition_channels=extra)
    tiny_models.randomize_(net, seed)
    net.save_pretrained(folder)
    return net


def instantx_rows(vae, pixels, mask=None):
    """What InstantX's ControlNets read of a picture, and of inpainting its mask, as the pipelines of diffusers make it."""
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255 * 2 - 1
    sharp = torch.zeros(1) if mask is None else torch.from_numpy((mask >= 128).astype(np.float32))[None, None]
    with torch.no_grad():
        latents = references.encode(vae, torch.where(sharp > 0.5, -torch.ones(()), image))
    if mask is None:
        return references.pack(latents)
    kept = 1 - torch.nn.functional.interpolate(sharp, size=latents.shape[-2:])
    return references.pack(torch.cat([latents, kept[:, :, None]], 1))


class ControlsParityTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = tiny_models.get()
        cls.transformer = cls.tiny.pipeline.transformer
        cls.width = cls.transformer.inner_dim
        cls.layers = len(cls.transformer.transformer_blocks)

    def setUp(self):
        super().setUp()
        self.picture = smooth_picture(HEIGHT, WIDTH)
        self.other = self.picture[::-1, ::-1].copy()
        for name, pixels in (("picture", self.picture), ("other", self.other), ("mask", mask_of())):
            Image.fromarray(pixels).save(self.root / f"{name}.png")
        self.latents = noise(1, HEIGHT, WIDTH, seed=51)

    def ours(self, nets, **flags):
        return atelier.generate([self.tiny.model, *nets], self.latents, prompt=PROMPT, negative_prompt=NEGATIVE,
                                height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, cfg_scale=SCALE, dtype="float32",
                                **flags)

    def plain(self):
        return self.ours([])

    def assert_matters(self, got):
        plain = self.plain()
        self.assertGreater(np.abs(np.asarray(got, np.float64) - np.asarray(plain, np.float64)).mean(), 2,
                           "the ControlNet changes too little for the test to prove anything")

    # ---- Of diffusers ----

    def instantx(self, seed, layers=1, extra=0):
        return make_instantx(self.transformer, self.root / f"net{seed}", seed, layers, extra)

    def reference(self, pipeline_class, net, **flags):
        components = {name: part for name, part in self.tiny.pipeline.components.items()}
        pipeline = pipeline_class(**components, controlnet=net)
        pipeline.set_progress_bar_config(disable=True)
        with mock.patch.object(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode()):
            return levels(
                pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=SCALE, height=HEIGHT, width=WIDTH,
                         num_inference_steps=STEPS, latents=references.pack(self.latents), output_type="np",
                         **flags).images)

    def test_a_union_controlnet_gives_the_same_picture(self):
        net = self.instantx(71)
        for scale, start, end in ((1.0, 0.0, 1.0), (0.6, 0.25, 0.75)):
            with self.subTest(scale=scale, start=start, end=end):
                expected = self.reference(QwenImageControlNetPipeline, net, control_image=Image.fromarray(self.picture),
                                          controlnet_conditioning_scale=scale, control_guidance_start=start,
                                          control_guidance_end=end)
                got = self.ours([self.root / "net71"], control_image=self.root / "picture.png",
                                controlnet_conditioning_scale=scale, control_guidance_start=start,
                                control_guidance_end=end)
                compare.assert_images("ControlNet of diffusers", got, expected, tolerance=0.01)
        self.assert_matters(got)

    def test_several_blocks_and_batched_guidance_give_the_same_picture(self):
        net = self.instantx(72, layers=2)
        expected = self.reference(QwenImageControlNetPipeline, net, control_image=Image.fromarray(self.picture),
                                  controlnet_conditioning_scale=1.0)
        for batch in ("on", "off"):
            got = self.ours([self.root / "net72"], control_image=self.root / "picture.png", cfg_batch=batch)
            compare.assert_images("ControlNet of two blocks", got, expected, tolerance=0.01)

    def test_an_inpainting_controlnet_gives_the_same_picture(self):
        net = self.instantx(73, extra=4)
        expected = self.reference(QwenImageControlNetInpaintPipeline, net, control_image=Image.fromarray(self.picture),
                                  control_mask=Image.fromarray(mask_of()), controlnet_conditioning_scale=1.0)
        got = self.ours([self.root / "net73"], control_image=self.root / "picture.png",
                        control_mask=self.root / "mask.png")
        compare.assert_images("ControlNet of inpainting", got, expected, tolerance=0.01)
        self.assert_matters(got)

    # ---- Blockwise ----

    def blockwise(self, seed, extra=0):
        net = tiny_models.randomize_(BlockwiseNet(self.layers, self.width, 16 + extra), seed)
        path = self.root / f"blockwise{seed}.safetensors"
        save_file(net.state_dict(), path)
        return net, path

    def blockwise_reference(self, uses):
        """`uses`: (net, rows of its picture, scale, start, end)."""
        step = {"calls": 0}

        def behind(number, _, output):
            text, image = output
            total = 0
            progress = (STEPS - 1 - step["calls"] // 2) / (STEPS - 1)
            for net, rows, scale, start, end in uses:
                if end - 1e-4 <= progress <= start + 1e-4:
                    total = total + scale * net.residual(number, image, net.img_in(rows))
            return text, image + total

        hooks = [
            block.register_forward_hook(lambda module, _, output, number=number: behind(number, module, output))
            for number, block in enumerate(self.transformer.transformer_blocks)
        ]

        def count(*_):
            step["calls"] += 1  # two calls a step, of guidance's branches

        hooks.append(self.transformer.register_forward_hook(count))
        try:
            pipeline = self.tiny.pipeline
            pipeline.set_progress_bar_config(disable=True)
            with torch.no_grad():
                return levels(
                    pipeline(PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=SCALE, height=HEIGHT, width=WIDTH,
                             num_inference_steps=STEPS, latents=references.pack(self.latents), output_type="np").images)
        finally:
            for hook in hooks:
                hook.remove()

    def rows(self, pixels, mask=None):
        image = torch.from_numpy(pixels.copy())
        if mask is not None:
            image[torch.from_numpy(mask) > 0] = 0
        image = (image.permute(2, 0, 1)[None].float() / 255) * 2 - 1
        with torch.no_grad():
            latents = references.encode(self.tiny.vae, image)
        if mask is not None:
            level = torch.from_numpy(mask)[None, None].float() / 255
            kept = 1 - torch.nn.functional.interpolate(level, size=latents.shape[-2:])
            latents = torch.cat([latents, kept[:, :, None]], 1)
        return references.pack(latents)

    def test_blockwise_controlnets_give_the_same_picture(self):
        (net, path), (second, second_path) = self.blockwise(81), self.blockwise(82)
        for uses, flags in (
            ([(net, self.rows(self.picture), 1.0, 1.0, 0.0)],
             dict(blockwise_controlnet_image=self.root / "picture.png")),
            ([(net, self.rows(self.picture), 0.7, 1.0, 0.5)],
             dict(blockwise_controlnet_image=self.root / "picture.png", blockwise_controlnet_scale=0.7,
                  blockwise_controlnet_end=0.5)),
        ):
            expected = self.blockwise_reference(uses)
            got = self.ours([path], **flags)
            compare.assert_images("blockwise ControlNet", got, expected, tolerance=0.01)
            self.assert_matters(got)
        expected = self.blockwise_reference([(net, self.rows(self.picture), 0.5, 1.0, 0.0),
                                             (second, self.rows(self.other), 0.8, 0.7, 0.0)])
        got = self.ours([path, second_path],
                        blockwise_controlnet_image=[self.root / "picture.png", self.root / "other.png"],
                        blockwise_controlnet_scale=[0.5, 0.8], blockwise_controlnet_start=[1.0, 0.7])
        compare.assert_images("two blockwise ControlNets", got, expected, tolerance=0.01)

    def test_a_blockwise_controlnet_of_inpainting_gives_the_same_picture(self):
        net, path = self.blockwise(83, extra=1)
        expected = self.blockwise_reference([(net, self.rows(self.picture, mask_of()), 1.0, 1.0, 0.0)])
        got = self.ours([path], blockwise_controlnet_image=self.root / "picture.png",
                        blockwise_controlnet_inpaint_mask=self.root / "mask.png")
        compare.assert_images("blockwise ControlNet of inpainting", got, expected, tolerance=0.01)

    # ---- In-Context-Control ----

    def test_a_context_image_is_a_picture_beside_the_image(self):
        """Of another shape, it is stretched to the image's; the words are those of text to image."""
        Image.fromarray(self.picture).resize((50, 70)).save(self.root / "context.png")
        stretched = np.asarray(Image.open(self.root / "context.png").resize((WIDTH, HEIGHT), Image.BICUBIC))
        rows = self.rows(stretched)
        shapes = [(1, HEIGHT // 16, WIDTH // 16)] * 2
        plain = self.transformer.forward

        def beside(hidden_states, img_shapes, **inputs):
            both = torch.cat([hidden_states, rows.expand(hidden_states.shape[0], -1, -1)], 1)
            return (plain(both, img_shapes=[shapes], **inputs)[0][:, :hidden_states.shape[1]],)

        pipeline = self.tiny.pipeline
        pipeline.set_progress_bar_config(disable=True)
        with mock.patch.object(self.transformer, "forward", beside):
            expected = levels(
                pipeline(PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=SCALE, height=HEIGHT, width=WIDTH,
                         num_inference_steps=STEPS, latents=references.pack(self.latents), output_type="np").images)
        got = self.ours([], context_image=self.root / "context.png")
        compare.assert_images("context image", got, expected, tolerance=0.01)
        self.assert_matters(got)

    # ---- Training ----

    def assert_step(self, net, denoiser, paths, component, column):
        """A step of training `net` alone is that of PyTorch: loss and the gradient of every parameter."""
        data = self.dir / component
        data.mkdir()
        Image.fromarray(self.picture).save(data / "followed.png")
        Image.fromarray(self.other).save(data / "image.png")
        (data / "metadata.csv").write_text(f'image,prompt,{column}\nimage.png,"{PROMPT}",followed.png\n')
        sample = training.encode(self.tiny, self.other, PROMPT)
        self.transformer.requires_grad_(False)
        self.addCleanup(self.transformer.requires_grad_)
        parameters = dict(net.named_parameters())
        losses, first = training.train(denoiser, steps.adamw(parameters.values()), lambda: [sample], seed=9)
        flags = dict(trainable_models=component, extra_inputs=column, data_file_keys=f"image,{column}",
                     dataset_base_path=data, dataset_metadata_path=data / "metadata.csv", max_train_steps=1, seed=9,
                     learning_rate=steps.RATE)
        with atelier.train(paths, [(self.other, PROMPT)], **flags) as run:
            compare.assert_close(f"{component}, loss", torch.tensor(run.losses()), torch.tensor(losses), 1e-5)
            wanted = {f"{component}.{name}": torch.zeros_like(parameter) if gradient is None else gradient
                      for (name, parameter), gradient in zip(parameters.items(), first)}
            compare.assert_all_close(f"{component}, gradients", steps.gradients(run), wanted, 1e-5, steps.FLOOR)

    def test_gradients_of_a_controlnet_of_diffusers_are_its_own(self):
        net = self.instantx(75, layers=2)
        rows = self.rows(self.picture)

        class Controlled:
            dtype = torch.float32

            def __call__(_, hidden_states, **inputs):
                samples = net(hidden_states=hidden_states, controlnet_cond=rows, **inputs)
                return self.transformer(hidden_states=hidden_states, controlnet_block_samples=samples, **inputs)

        self.assert_step(net, Controlled(), [self.tiny.model, self.root / "net75"], "controlnet", "control_image")

    def test_gradients_of_a_blockwise_controlnet_are_its_own(self):
        net, path = self.blockwise(85)
        rows = self.rows(self.picture)

        class Controlled:
            dtype = torch.float32

            def __call__(_, **inputs):
                picture = net.img_in(rows)

                def behind(number, output):
                    return output[0], output[1] + net.residual(number, output[1], picture)

                hooks = [block.register_forward_hook(lambda *call, number=number: behind(number, call[2]))
                         for number, block in enumerate(self.transformer.transformer_blocks)]
                try:
                    return self.transformer(**inputs)
                finally:
                    for hook in hooks:
                        hook.remove()

        self.assert_step(net, Controlled(), [self.tiny.model, path], "blockwise_controlnet",
                         "blockwise_controlnet_image")

    def test_a_controlnet_that_never_counts_is_never_run(self):
        """Weights that are no numbers would be seen in any image of theirs."""
        self.instantx(76)
        _, blockwise = self.blockwise(86)
        net = self.root / "net76"
        for file in (blockwise, *net.glob("*.safetensors")):
            save_file({name: torch.full_like(value, torch.nan) for name, value in load_file(file).items()}, file)
        followed = self.root / "picture.png"
        for path, flags in (
            (net, dict(control_image=followed, controlnet_conditioning_scale=0)),
            (net, dict(control_image=followed, control_guidance_start=0.99, control_guidance_end=0.99)),
            (blockwise, dict(blockwise_controlnet_image=followed, blockwise_controlnet_scale=0)),
            (blockwise, dict(blockwise_controlnet_image=followed, blockwise_controlnet_start=0.5,
                             blockwise_controlnet_end=0.5)),
        ):
            with self.subTest(**flags):
                self.assertTrue(np.array_equal(self.ours([path], **flags), self.plain()))

    def loaded(self, paths, *flags):
        """The files that a run loads, and what a plan of it holds of the device."""
        line = ["--plugin", "qwen_image", "--model_paths", atelier.paths_argument([self.tiny.model, *paths]), "--prompt",
                PROMPT, "--height", HEIGHT, "--width", WIDTH, "--num_inference_steps", STEPS, "--dtype", "float32",
                "--output", self.root / "out.png", *flags]
        said = program.run("generate", *line, "--device", "cpu", code=0).stderr
        program.run("plan", "generate", *line, "--device", "simulated", "--vram", "1GiB", "--json", self.root / "plan.json",
                    code=0)
        plan = json.loads((self.root / "plan.json").read_text())
        return set(re.findall(r"load (\S*controlnet\S*):", said)), plan["device_bytes"]

    def test_a_controlnet_that_never_counts_is_neither_loaded_nor_planned(self):
        self.instantx(77)
        files = [self.root / "net77", self.blockwise(87)[1], self.blockwise(88)[1]]
        followed = self.root / "picture.png"
        union, blockwise = ("--control_image", followed), ("--blockwise_controlnet_image", followed)
        _, alone = self.loaded([])
        for paths, flags in (
            (files[:1], (*union, "--controlnet_conditioning_scale", 0)),
            (files[:1], (*union, "--control_guidance_start", 0.99)),
            (files[1:2], (*blockwise, "--blockwise_controlnet_scale", 0)),
            (files[1:2], (*blockwise, "--blockwise_controlnet_start", 0.5, "--blockwise_controlnet_end", 0.5)),
        ):
            with self.subTest(flags=flags):
                self.assertEqual(self.loaded(paths, *flags), (set(), alone))
        # Of two, one may count.
        both = (*blockwise, *blockwise, "--blockwise_controlnet_scale", 0.7, "--blockwise_controlnet_end", 0.5)
        names, bytes_of_both = self.loaded(files[1:], *both, "--blockwise_controlnet_start", 1)
        self.assertEqual(names, {"blockwise_controlnet", "blockwise_controlnet.1"})
        names, bytes_of_one = self.loaded(files[1:], *both, "--blockwise_controlnet_start", 0.5,
                                          "--blockwise_controlnet_start", 1)
        self.assertEqual(names, {"blockwise_controlnet.1"})
        self.assertLess(alone, bytes_of_one)
        self.assertLess(bytes_of_one, bytes_of_both)
        options = dict(blockwise_controlnet_image=followed, blockwise_controlnet_scale=0.7, blockwise_controlnet_end=0.5)
        beside = self.ours(files[1:], **options | {"blockwise_controlnet_image": [followed] * 2,
                                                   "blockwise_controlnet_start": [0.5, 1]})
        self.assertTrue(np.array_equal(beside, self.ours(files[2:], **options)))

    def test_without_a_picture_nothing_changes(self):
        _, path = self.blockwise(84)
        self.instantx(74)
        got = self.ours([path, self.root / "net74"])
        self.assertTrue(np.array_equal(got, self.plain()))


def drawn(seed, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def instantx_inputs(channels, width):
    """Of two samples that are 4 x 3 tokens large."""
    return {**drawn(61, latents=(2, 16, 1, 8, 6), control=(2, channels, 1, 8, 6), prompt_embeds=(2, 9, width)),
            "sigma": torch.tensor([0.3, 0.85])}


def instantx_hints(net, latents, control, sigma, prompt_embeds):
    size = (1, latents.shape[-2] // 2, latents.shape[-1] // 2)
    return torch.stack(net(hidden_states=references.pack(latents), controlnet_cond=references.pack(control),
                           encoder_hidden_states=prompt_embeds, timestep=sigma, img_shapes=[[size]] * len(latents),
                           return_dict=False))


def blockwise_inputs(channels, width):
    return drawn(62, rows=(2, 12, width), control=(2, channels, 1, 8, 6))


def blockwise_hints(net, rows, control):
    picture = net.img_in(references.pack(control))
    return torch.stack([net.residual(number, rows, picture) for number in range(len(net.controlnet_blocks))])


class HintsParityTest(FolderTest):
    """What every block of a ControlNet gives, and the gradients of all that it depends on."""

    def check(self, name, component, path, net, inputs, hints):
        floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
        output = hints(net, **floating)
        got = atelier.probe(component, path, inputs, gradients=True, trainable="*")
        for number, expected in enumerate(output):
            compare.assert_close(f"{name}, hints", got["hints"][number], expected, 1e-5)
        compare.assert_gradients(f"{name}, gradients", got,
                                 references.gradients(output, floating, dict(net.named_parameters())))

    def test_those_of_instantx(self):
        transformer = tiny_models.get().pipeline.transformer
        for extra, layers in ((0, 2), (4, 1)):
            with self.subTest(extra=extra, layers=layers):
                folder = self.root / f"union{extra}"
                net = make_instantx(transformer, folder, 77 + extra, layers, extra)
                inputs = instantx_inputs(16 + extra // 4, transformer.config.joint_attention_dim)
                self.check(f"ControlNet of {layers} blocks", "controlnet", folder, net, inputs, instantx_hints)

    def test_those_of_blockwise_ones(self):
        for extra in (0, 1):
            with self.subTest(extra=extra):
                net = tiny_models.randomize_(BlockwiseNet(3, 64, 16 + extra), 87 + extra)
                path = self.root / f"blocks{extra}.safetensors"
                save_file(net.state_dict(), path)
                self.check("blockwise ControlNet", "blockwise_controlnet", path, net, blockwise_inputs(16 + extra, 64),
                           blockwise_hints)


class EditControlsParityTest(FolderTest):
    """InstantX's ControlNets beside pictures that are edited. No pipeline of diffusers has both: a ControlNet is called as
    its pipeline calls it, of the latents alone, and gives the rows of the pictures nothing, as blockwise ones do in
    DiffSynth-Studio."""

    PROMPT, NEGATIVE = "Turn the cat of picture 1 blue, 超清", "blurry, 低画质"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tiny = tiny_models.get()
        cls.models = edit_models.EditModels(cls.root, parts=tiny.model)
        cls.followed = smooth_picture(HEIGHT, WIDTH)
        Image.fromarray(cls.followed).save(cls.root / "followed.png")
        Image.fromarray(mask_of()).save(cls.root / "mask.png")
        cls.latents = noise(1, HEIGHT, WIDTH, seed=52)
        cls.pictures = [edit_models.smooth_picture(64, 128, 3), edit_models.smooth_picture(128, 96, 4)]
        cls.files = [cls.root / f"edited_{number}.png" for number in range(2)]
        for picture, file in zip(cls.pictures, cls.files):
            picture.save(file)

    def net(self, seed, transformer, extra=0):
        net = make_instantx(transformer, self.root / f"net{seed}", seed, layers=2, extra=extra)
        mask = mask_of() if extra else None
        return net, instantx_rows(self.models.vae, self.followed, mask)

    def expected(self, pipeline, net, rows, pictures, scale):
        """Pictures keep their sizes, and both branches of guidance have the hints of the prompt."""
        plain, calls, hints = pipeline.transformer.forward, itertools.count(), []

        def forward(hidden_states, img_shapes, **inputs):
            count = rows.shape[1]
            if next(calls) % 2 == 0:
                named = ("timestep", "encoder_hidden_states", "encoder_hidden_states_mask")
                hints[:] = net(hidden_states=hidden_states[:, :count], controlnet_cond=rows, conditioning_scale=scale,
                               img_shapes=[shapes[:1] for shapes in img_shapes], return_dict=False,
                               **{name: inputs[name] for name in named})
            padded = [torch.nn.functional.pad(hint, (0, 0, 0, hidden_states.shape[1] - count)) for hint in hints]
            return plain(hidden_states, img_shapes=img_shapes, controlnet_block_samples=padded, **inputs)

        sizes = {picture.width / picture.height: picture.size for picture in pictures}
        module = sys.modules[type(pipeline).__module__]
        resized = module.calculate_dimensions

        def own_size(area, ratio):
            width, height = resized(area, ratio)[:2] if area < 1024 * 1024 else sizes[ratio]
            return (width, height, None)[:len(resized(area, ratio))]

        with mock.patch.object(pipeline.transformer, "forward", forward), \
                mock.patch.object(module, "calculate_dimensions", own_size):
            image = pictures if len(pictures) > 1 else pictures[0]
            return levels(
                pipeline(image=image, prompt=self.PROMPT, negative_prompt=self.NEGATIVE, true_cfg_scale=SCALE,
                         height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, latents=references.pack(self.latents),
                         output_type="np").images)

    def ours(self, folder, nets, count, **flags):
        return atelier.generate([folder, *nets], self.latents, prompt=self.PROMPT, negative_prompt=self.NEGATIVE,
                                height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, cfg_scale=SCALE, dtype="float32",
                                edit_image=self.files[:count], edit_image_auto_resize="false", **flags)

    def check(self, folder, seed, count, extra=0, scale=0.8):
        pipeline = self.models.pipeline(folder)
        net, rows = self.net(seed, pipeline.transformer, extra)
        expected = self.expected(pipeline, net, rows, self.pictures[:count], scale)
        masks = dict(control_mask=self.root / "mask.png") if extra else {}
        got = self.ours(folder, [self.root / f"net{seed}"], count, control_image=self.root / "followed.png",
                        controlnet_conditioning_scale=scale, **masks)
        compare.assert_images(f"ControlNet beside {count} pictures, {folder.name}", got, expected)
        plain = self.ours(folder, [], count)
        self.assertGreater(np.abs(np.asarray(got, np.float64) - np.asarray(plain, np.float64)).mean(), 2)

    def test_one_picture_is_edited(self):
        self.check(self.models.variant("Qwen-Image-Edit"), 91, 1)

    def test_several_pictures_are_edited(self):
        self.check(self.models.variant("Qwen-Image-Edit-2509"), 92, 2)

    def test_gradients_beside_clean_pictures_are_those_of_pytorch(self):
        folder = self.models.variant("Qwen-Image-Edit-2511-trained", zero_cond_t=True)
        pipeline = self.models.pipeline(folder)
        transformer = pipeline.transformer.requires_grad_(False)
        net, rows = self.net(94, transformer)
        Image.fromarray(self.followed[::-1].copy()).save(self.root / "image.png")
        row = {"image": "image.png", "prompt": self.PROMPT, "edit_image": [file.name for file in self.files],
               "control_image": "followed.png"}
        (self.root / "rows.json").write_text(json.dumps([row]))
        encoded = []
        with torch.no_grad():
            shown = [edit_models.shown(picture) for picture in self.pictures]
            embeds, _ = pipeline.encode_prompt(self.PROMPT, image=shown, device="cpu")
            for pixels in (self.followed[::-1].copy(), *map(np.asarray, self.pictures)):
                image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255 * 2 - 1
                encoded.append(references.encode(self.models.vae, image))
        image, *edited = encoded

        class Controlled:
            dtype = torch.float32

            def __call__(_, hidden_states, img_shapes, **inputs):
                hints = net(hidden_states=hidden_states, controlnet_cond=rows, img_shapes=img_shapes, **inputs)
                packed = torch.cat([hidden_states, *map(references.pack, edited)], 1)
                places = [(1, value.shape[-2] // 2, value.shape[-1] // 2) for value in edited]
                padded = [torch.nn.functional.pad(hint, (0, 0, 0, packed.shape[1] - hint.shape[1])) for hint in hints]
                tokens, = transformer(hidden_states=packed, controlnet_block_samples=padded,
                                      img_shapes=[shapes + places for shapes in img_shapes], **inputs)
                return (tokens[:, :hidden_states.shape[1]],)

        parameters = dict(net.named_parameters())
        losses, first = training.train(Controlled(), steps.adamw(parameters.values()),
                                       lambda: [training.Sample(image[0], embeds[0])], seed=9)
        flags = dict(trainable_models="controlnet", data_file_keys="image,edit_image,control_image",
                     extra_inputs="edit_image,control_image", edit_image_auto_resize="false", zero_cond_t=True,
                     dataset_base_path=self.root, dataset_metadata_path=self.root / "rows.json", max_train_steps=1,
                     seed=9, learning_rate=steps.RATE)
        with atelier.train([folder, self.root / "net94"], [(self.followed, "x")], **flags) as run:
            compare.assert_close("ControlNet beside pictures, loss", torch.tensor(run.losses()), torch.tensor(losses), 1e-5)
            wanted = {f"controlnet.{name}": torch.zeros_like(parameter) if gradient is None else gradient
                      for (name, parameter), gradient in zip(parameters.items(), first)}
            compare.assert_all_close("ControlNet beside pictures, gradients", steps.gradients(run), wanted, 1e-5,
                                     steps.FLOOR)

    def test_a_part_is_made_anew_beside_clean_pictures(self):
        self.check(self.models.variant("Qwen-Image-Edit-2511", zero_cond_t=True), 93, 2, extra=4)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0]])
