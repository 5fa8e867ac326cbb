"""The families of models that the comparison scripts know: how diffusers makes and runs them."""

import dataclasses
import importlib
import pathlib
import shutil
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/parity"))


@dataclasses.dataclass(frozen=True)
class Family:
    """Libraries are imported by the methods, behind what the scripts set for them."""
    plugin: str
    title: str
    # diffusers' class of the denoiser, and its argument for the width of the text.
    denoiser: str
    text_width_name: str
    text_width: int
    # The module of tests/parity with the function that runs the denoiser.
    reference: str
    # Of a model by name: the denoiser's other arguments, and the side of the latents of a step.
    models: dict = dataclasses.field(default_factory=dict)
    # Tokens of the prompt and of what guidance leads away from, in each row of a denoising step.
    prompts: tuple = ()
    # The layers of a block that trainers choose for a LoRA, as diffusers names them.
    lora_targets: tuple = ()
    # The spelling of LoRA files that names the plugin's own layers.
    lora_format: str = ""
    # The same layers by the names of the plugin, where they are not its own choice.
    lora_layers: tuple = ()
    # Layers of diffusers that are one layer of the plugin, with one lora_A.
    fused: tuple = ()
    # What diffusers_compare.py can measure.
    parts: tuple = ("dit",)
    # Of the published model: by folder, the list of its tensors in tests/data/keys, and its config in
    # tests/data/configs or how it differs from that of the tiny model.
    published: dict = dataclasses.field(default_factory=dict)

    def denoiser_class(self):
        import diffusers
        return getattr(diffusers, self.denoiser)

    def make_denoiser(self, folder, dtype, **arguments):
        import torch
        torch.manual_seed(1)
        # Drawn in the target's precision and in place, so that 2 GiB do not cost 8.
        torch.set_default_dtype(dtype)
        try:
            model = self.denoiser_class()(**{self.text_width_name: self.text_width, **arguments})
        finally:
            torch.set_default_dtype(torch.float32)
        model.save_pretrained(folder, max_shard_size="1GB")

    def make_model(self, folder, name):
        """A whole model: a tokenizer, a small text encoder and VAE, and the denoiser."""
        import torch
        text_width = self.make_tiny_model(folder / "parts")
        shutil.copytree(folder / "parts/model", folder / "model")
        shutil.rmtree(folder / "parts")
        shutil.rmtree(folder / "model/transformer")
        arguments, _ = self.models[name]
        self.make_denoiser(folder / "model/transformer", torch.float32,
                           **{**arguments, self.text_width_name: text_width})

    def velocity(self):
        """The function of a denoiser, latents [B, 16, 1, h, w], sigma, text, lengths."""
        return importlib.import_module(self.reference).velocity

    def make_tiny_model(self, folder):
        """Writes the tiny model of the tests and returns the width of its text encoder."""
        raise NotImplementedError

    def training_sigmas(self):
        """The noise levels of training, from pure noise on."""
        raise NotImplementedError


class QwenImage(Family):

    def make_tiny_model(self, folder):
        import tiny_models
        tiny_models.build(folder)
        return 96

    def training_sigmas(self):
        import training
        return training.sigmas()


class Wan(Family):

    def make_tiny_model(self, folder):
        import wan_models
        wan_models.WanModels(folder)
        return wan_models.TEXT_WIDTH

    def training_sigmas(self):
        import numpy
        u = 1 - numpy.arange(1000) / 1000
        return 5 * u / (1 + 4 * u)


class Lumina2(Family):

    def make_tiny_model(self, folder):
        import lumina2_models
        lumina2_models.Lumina2Models(folder)
        return lumina2_models.TEXT_WIDTH

    def training_sigmas(self):
        import numpy
        shift, u = 3.158192909689767, 1 - numpy.arange(1000) / 1000
        return shift * u / (1 + (shift - 1) * u)


FAMILIES = {
    family.plugin: family for family in (
        QwenImage(plugin="qwen_image",
                  title="Qwen-Image",
                  denoiser="QwenImageTransformer2DModel",
                  text_width_name="joint_attention_dim",
                  text_width=3584,
                  models={
                      "tiny": (dict(num_layers=2,
                                    num_attention_heads=3,
                                    attention_head_dim=32,
                                    axes_dims_rope=(8, 12, 12)), 16),
                      "middle": (dict(num_layers=8,
                                      num_attention_heads=8,
                                      attention_head_dim=128), 64),
                  },
                  prompts=((64, 64),),
                  lora_targets=("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj",
                                "to_out.0", "to_add_out", "img_mlp.net.2", "img_mod.1",
                                "txt_mlp.net.2", "txt_mod.1"),
                  lora_layers=("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj",
                               "to_out.0", "to_add_out", "img_mlp.net.2", "img_mod.1",
                               "txt_mlp.net.2", "txt_mod.1"),
                  lora_format="diffusers",
                  reference="references",
                  parts=("dit", "vae", "load"),
                  published={
                      "transformer": ("transformer.txt", "qwen_image_transformer.json"),
                      "text_encoder": ("text_encoder_disk.txt", "qwen_image_text_encoder.json"),
                      "vae": ("vae_diffusers.txt", "qwen_image_vae.json")
                  }),
        Lumina2(plugin="lumina2",
                title="Lumina-Image 2.0",
                denoiser="Lumina2Transformer2DModel",
                text_width_name="cap_feat_dim",
                text_width=2304,
                models={
                    "tiny": (dict(hidden_size=96,
                                  num_layers=2,
                                  num_refiner_layers=1,
                                  num_attention_heads=4,
                                  num_kv_heads=2,
                                  axes_dim_rope=(8, 8, 8)), 16),
                    "middle": (dict(hidden_size=768,
                                    num_layers=8,
                                    num_refiner_layers=2,
                                    num_attention_heads=8,
                                    num_kv_heads=4,
                                    axes_dim_rope=(32, 32, 32)), 44),
                },
                prompts=((64, 64), (256, 16)),
                lora_targets=("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
                              "feed_forward.linear_1", "feed_forward.linear_2",
                              "feed_forward.linear_3", "norm1.linear"),
                lora_format="comfy",
                reference="lumina2_models",
                fused=("attn.to_q", "attn.to_k", "attn.to_v"),
                published={
                    "transformer": ("lumina2_transformer.txt", "lumina2_transformer.json"),
                    "text_encoder": ("lumina2_text_encoder.txt", "lumina2_text_encoder.json"),
                    "vae": ("lumina2_vae.txt", "lumina2_vae.json")
                }),
    )
}
# Denoising and training steps alone are timed of these.
QWEN_EDIT = dataclasses.replace(FAMILIES["qwen_image"], title="Qwen-Image-Edit with two references")
WAN = Wan(plugin="wan",
          title="Wan 2.1 1.3B",
          denoiser="WanTransformer3DModel",
          text_width_name="text_dim",
          text_width=4096,
          models={
              "tiny": (dict(num_layers=2, num_attention_heads=2, attention_head_dim=16, freq_dim=64, ffn_dim=80), 16),
              "middle": (dict(num_layers=4, num_attention_heads=12, attention_head_dim=128, ffn_dim=8960), 32)
          },
          lora_targets=("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"),
          lora_format="diffusers",
          reference="wan_models",
          published={
              "transformer": ("wan_t2v_1_3b.txt",
                              dict(num_attention_heads=12, attention_head_dim=128, num_layers=30, ffn_dim=8960,
                                   text_dim=4096, freq_dim=256)),
              "text_encoder": ("umt5.txt", dict(vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_heads=64,
                                                num_layers=24)),
              "vae": ("vae_diffusers.txt", dict(base_dim=96))
          })
LARGE_DIT = dict(num_attention_heads=40, attention_head_dim=128, num_layers=40, ffn_dim=13824, text_dim=4096,
                 freq_dim=256)
WAN_14B = dataclasses.replace(WAN, title="Wan 2.1 14B",
                              published={**WAN.published, "transformer": ("wan_t2v_14b.txt", LARGE_DIT)})
# Two experts of the same shapes; "transformer_2" is the one for little noise.
WAN_22 = dataclasses.replace(WAN_14B, title="Wan 2.2 T2V-A14B",
                             published={**WAN_14B.published, "transformer_2": ("wan_t2v_14b.txt", LARGE_DIT)})
IMAGE_DIT = ("wan22_i2v_a14b.txt", {**LARGE_DIT, "in_channels": 36})
WAN_22_IMAGE = dataclasses.replace(WAN_14B, title="Wan 2.2 I2V-A14B",
                                   published={**WAN_14B.published, "transformer": IMAGE_DIT,
                                              "transformer_2": IMAGE_DIT})
WAN_22_5B = dataclasses.replace(WAN, title="Wan 2.2 TI2V-5B", published={
    **WAN.published,
    "transformer": ("wan22_ti2v_5b.txt", dict(num_attention_heads=24, attention_head_dim=128, num_layers=30,
                                              ffn_dim=14336, text_dim=4096, freq_dim=256, in_channels=48,
                                              out_channels=48)),
    # Its latents' means and deviations are those that the plugin knows.
    "vae": ("wan22_vae.txt", dict(base_dim=160, decoder_base_dim=256, z_dim=48, is_residual=True, patch_size=2,
                                  in_channels=12, out_channels=12, latents_mean=[], latents_std=[]))
})
