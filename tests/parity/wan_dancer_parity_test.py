"""Wan-Dancer: music, reference and key frames change velocities, gradients and whole clips as its published
code says, which is written again in wan_dancer_models.py."""

import sys
import unittest

import torch

import compare
import references
import wan_checks
import wan_dancer_models as dancer
import wan_models
from wan_checks import probe


def inputs_of(batch=2, frames=3, height=8, width=8, length=11, rows=40, seed=17):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn((batch, *shape), generator=generator)
    return {"latents": draw(16, frames, height, width),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": draw(length, wan_models.TEXT_WIDTH),
            "image_embeds": draw(wan_models.IMAGE_ROWS, wan_models.IMAGE_WIDTH),
            "reference_embeds": draw(wan_models.IMAGE_ROWS, wan_models.IMAGE_WIDTH),
            "given_clip": draw(20, frames, height, width),
            "music": draw(rows, dancer.MUSIC)}


class DancerDenoiserTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tensors = dancer.make_tensors()
        cls.file = dancer.save(cls.tensors, cls.dir / "local_model.safetensors")

    def expected(self, inputs, **options):
        with torch.no_grad():
            return dancer.velocity(self.tensors, **inputs, **options)

    def check(self, what, inputs, more=None, **options):
        """Velocities and gradients; `more`: what the program is told beside the inputs."""
        given = inputs | (more or {})
        got = probe("dit", self.file, given, gradients=True, trainable="*")
        floating = wan_checks.with_gradients(inputs)
        tensors = {name: tensor.clone().requires_grad_(True) for name, tensor in self.tensors.items()}
        output = dancer.velocity(tensors, **floating, **options)
        compare.assert_close(f"wan dancer, denoiser, {what}", got["velocity"], output, tolerance=1e-5)
        wanted = references.gradients(output, floating, tensors)
        given_only = {name: value for name, value in got.items() if name.removeprefix("grad.") not in (more or {})}
        compare.assert_gradients(f"wan dancer, gradients, {what}", given_only, wanted)
        return got, wanted

    def test_velocities_and_gradients_at_30_frames_a_second(self):
        got, wanted = self.check("30 frames a second", inputs_of())
        # Softmax over one key: queries and keys of the music have no gradient.
        for part in ("q.weight", "k.weight", "norm_q.weight", "norm_k.weight"):
            name = f"grad.music_injector.injector.0.{part}"
            self.assertLess(float(wanted[name].abs().max()), 1e-4)
            self.assertEqual(0, float(got[name].abs().max()) if name in got else 0)
        self.assertGreater(float(got["grad.music_injector.injector.2.v.weight"].abs().max()), 1e-2)

    def test_another_rate_has_a_way_in_and_out_of_its_own(self):
        inputs = inputs_of(frames=4)
        for fps in (7.5, 4.2857):
            with self.subTest(fps=fps):
                places = dancer.places_of(4, fps).expand(2, -1, -1)
                self.check(f"{fps} frames a second", inputs, {"frame_places": places}, fps=fps)
        effect = self.expected(inputs, fps=7.5) - self.expected(inputs, fps=4.2857)
        self.assertGreater(float(effect.abs().max()), 1e-2, "the rate proves nothing")

    def test_the_branch_without_the_prompt_skips_a_block(self):
        inputs = inputs_of()
        self.check("skipped block", inputs, {"skips_block": torch.ones(2, 1)}, skips=True)
        effect = self.expected(inputs, skips=True) - self.expected(inputs)
        self.assertGreater(float(effect.abs().max()), 1e-2, "the block proves nothing")

    def test_samples_have_prompts_and_music_of_their_own_lengths(self):
        inputs = inputs_of(rows=160)
        lengths, heard = torch.tensor([11, 5]), torch.tensor([160, 31])
        got = probe("dit", self.file, inputs | {"prompt_lengths": lengths, "music_lengths": heard})
        expected = self.expected(inputs, lengths=lengths.tolist(), music_lengths=heard.tolist())
        compare.assert_close("wan dancer, lengths", got["velocity"], expected, tolerance=1e-5)

    def test_frames_that_cannot_be_cut_into_beats_are_refused(self):
        with self.assertRaisesRegex(Exception, "cannot be cut into 8 beats of music"):
            probe("dit", self.file, inputs_of(height=6))


if __name__ == "__main__":
    sys.exit(unittest.main())
