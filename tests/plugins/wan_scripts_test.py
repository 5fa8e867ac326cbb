"""The training scripts that DiffSynth-Studio publishes for Wan, on files of the published names, shapes and places.

Their command lines are pasted behind `atelier`, and what comes back is planned, which checks everything that a training
checks. The files have no values, and the rows name clips. The tokenizer is where a repository has it, and not named.
"""

import json
import unittest

from published_scripts import ScriptTest, write_published
from tiny_run import write_png

TEXT_ENCODER = "models_t5_umt5-xxl-enc-bf16.pth"
IMAGE_ENCODER = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"
DIT = "diffusion_pytorch_model*.safetensors"
CONFIG = "examples/wanvideo/model_training/full/accelerate_config_14B.yaml"

# Of a model: the keys of its denoiser, what its scripts ask for, and what those of LoRAs and of whole models add.
IMAGE, ENDS = ["--extra_inputs", "input_image"], ["--extra_inputs", "input_image,end_image"]
ON_CPU, OFFLOAD = ["--initialize_model_on_cpu"], ["--use_gradient_checkpointing_offload"]
MODELS = {
    "Wan2.1-T2V-1.3B": ("wan_t2v_1_3b", [], [], []),
    "Wan2.1-T2V-14B": ("wan_t2v_14b", [], [], []),
    "Wan2.1-I2V-14B-480P": ("wan_i2v_14b", IMAGE, [], ON_CPU),
    "Wan2.1-I2V-14B-720P": ("wan_i2v_14b", IMAGE, OFFLOAD + ON_CPU, OFFLOAD + ON_CPU),
    "Wan2.1-FLF2V-14B-720P": ("wan_flf2v_14b", ENDS, [], ON_CPU),
    "Wan2.2-T2V-A14B": ("wan_t2v_14b", [], [], []),
    "Wan2.2-I2V-A14B": ("wan22_i2v_a14b", IMAGE, [], OFFLOAD),
    "Wan2.2-TI2V-5B": ("wan22_ti2v_5b", IMAGE, [], []),
}
BOUNDARIES = {"Wan2.2-T2V-A14B": "0.417", "Wan2.2-I2V-A14B": "0.358"}
# With how many frames a script says that it trains, by model, and whether it is one of a LoRA. The others leave it out: 81.
FRAMES = {
    ("Wan2.1-I2V-14B-720P", False): 49,
    **{(model, is_lora): 49
       for model in (*BOUNDARIES, "Wan2.2-TI2V-5B")
       for is_lora in (True, False)}
}


def write_clips(folder, frames=(81, 85)):
    """Rows of clips, folders of frames; a few files, linked."""
    folder.mkdir()
    for number in range(4):
        write_png(folder / f"{number}.png", 96, 64, lambda x, y, number=number: (2 * x, 3 * y, 60 * number))
    lines = ["video,prompt"]
    for clip, count in enumerate(frames):
        (folder / f"clip_{clip}").mkdir()
        for frame in range(count):
            (folder / f"clip_{clip}" / f"{frame}.png").symlink_to(folder / f"{frame % 4}.png")
        lines.append(f"clip_{clip},a clip of number {clip}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def write_tokenizer(folder):
    """Letters and the space, in umT5's form."""
    folder.mkdir(parents=True)
    special = ["<pad>", "</s>", "<unk>"]
    vocabulary = [[word, 0.0] for word in special] + [[letter, -3.0] for letter in "\u2581abcdefghijklmnopqrstuvwxyz"]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": number, "content": word, "special": True} for number, word in enumerate(special)],
        "pre_tokenizer": metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": False}}))


class WanScripts(ScriptTest):
    plugin, config = "wan", CONFIG

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data/diffsynth_example_dataset/wanvideo"
        cls.data.mkdir(parents=True)
        write_clips(cls.root / "rows")
        for model, (keys, *_) in MODELS.items():
            folder = cls.root / "models/Wan-AI" / model
            parts = ("high_noise_model/", "low_noise_model/") if model in BOUNDARIES else ("",)
            for part in parts:
                write_published(folder / (part + "diffusion_pytorch_model.safetensors"), keys + "_original")
            write_published(folder / TEXT_ENCODER, "umt5_original")
            write_published(folder / cls.vae(model), "wan22_vae_original" if "TI2V" in model else "vae_original")
            if "image_encoder" in cls.components(model):
                write_published(folder / IMAGE_ENCODER, "clip_original")
            write_tokenizer(folder / "google/umt5-xxl")
            (cls.data / model).symlink_to(cls.root / "rows")

    @staticmethod
    def vae(model):
        return "Wan2.2_VAE.pth" if "TI2V" in model else "Wan2.1_VAE.pth"

    @staticmethod
    def components(model):
        image = ["image_encoder"] if model.startswith("Wan2.1-") and "2V-14B" in model and "T2V" not in model else []
        return ["text_encoder", "vae", *image]

    def line(self, model, is_lora, expert=""):
        """A script's command line. `expert`: the folder of one of two."""
        _, asked, lora, full = MODELS[model]
        names = [f"{expert}/{DIT}" if expert else DIT, TEXT_ENCODER, self.vae(model)]
        names += [IMAGE_ENCODER] if "image_encoder" in self.components(model) else []
        data = f"data/diffsynth_example_dataset/wanvideo/{model}"
        line = ["accelerate", "launch", *(["--config_file", CONFIG] if not is_lora and model != "Wan2.1-T2V-1.3B" else []),
                "examples/wanvideo/model_training/train.py", "--dataset_base_path", data, "--dataset_metadata_path",
                f"{data}/metadata.csv"]
        line += ["--height", "720", "--width", "1280"] if "I2V-14B-720P" in model else ["--height", "480", "--width", "832"]
        if (model, is_lora) in FRAMES:
            line += ["--num_frames", str(FRAMES[model, is_lora])]
        line += ["--dataset_repeat", "100", "--model_id_with_origin_paths",
                 ",".join(f"Wan-AI/{model}:{name}" for name in names), "--learning_rate", "1e-4" if is_lora else "1e-5",
                 "--num_epochs", "5" if is_lora else "2", "--remove_prefix_in_ckpt", "pipe.dit.", "--output_path",
                 f"./models/train/{model}{'_' + expert if expert else ''}_{'lora' if is_lora else 'full'}"]
        line += ["--lora_base_model", "dit", "--lora_target_modules", "q,k,v,o,ffn.0,ffn.2", "--lora_rank",
                 "32"] if is_lora else ["--trainable_models", "dit"]
        line += asked + (lora if is_lora else full)
        if expert:
            low = expert.startswith("low")
            line += ["--max_timestep_boundary", "1" if low else BOUNDARIES[model], "--min_timestep_boundary",
                     BOUNDARIES[model] if low else "0"]
        return line

    def check(self, model, expert=""):
        for is_lora in (True, False):
            with self.subTest(model=model, expert=expert, is_lora=is_lora):
                plan = self.plan(self.line(model, is_lora, expert))
                components = {component["name"] for component in plan["components"]}
                self.assertEqual(components, {"dit", *self.components(model)})
                self.assertEqual("train", plan["phases"][-1]["name"])
                self.assertEqual(200 * (5 if is_lora else 2), plan["phases"][-1]["passes"])

    def test_models_of_text(self):
        self.check("Wan2.1-T2V-1.3B")
        self.check("Wan2.1-T2V-14B")

    def test_models_of_images(self):
        for model in ("Wan2.1-I2V-14B-480P", "Wan2.1-I2V-14B-720P", "Wan2.1-FLF2V-14B-720P"):
            self.check(model)

    def test_experts_alone_with_the_levels_that_the_script_says(self):
        for model in BOUNDARIES:
            for expert in ("high_noise_model", "low_noise_model"):
                self.check(model, expert)

    def test_the_model_of_five_billion(self):
        model = "Wan2.2-TI2V-5B"
        self.check(model)
        line = self.line(model, is_lora=True)
        files = line[line.index("--model_id_with_origin_paths") + 1]
        said = self.run_program("plan", "generate", "--plugin", "wan", "--model_id_with_origin_paths", files, "--prompt",
                                "a clip", "--height", 480, "--width", 832, "--num_frames", 49, "--input_image",
                                "rows/0.png", "--output", "clip.webp", "--vram", "4000GiB", "--device_profile", "h200")
        self.assertRegex(said.stdout + said.stderr, "denoise")

    def test_as_many_frames_are_learnt_as_the_line_says(self):
        line = self.line("Wan2.1-T2V-1.3B", is_lora=True)
        working = {}
        for frames in ("49", "81", ""):
            plan = self.plan(line + (["--num_frames", frames] if frames else []))
            working[frames] = plan["phases"][-1]["working_bytes"]
        self.assertEqual(working["81"], working[""])
        latent_frames = 21 / 13
        self.assertAlmostEqual(latent_frames, working["81"] / working["49"], delta=0.1)

    def test_the_models_are_out_of_the_way_while_the_denoiser_trains(self):
        plan = self.plan(self.line("Wan2.1-I2V-14B-480P", is_lora=True))
        bytes_of = {component["name"]: component["device_bytes"] for component in plan["components"]}
        train = plan["phases"][-1]
        driver = 1 << 30
        self.assertLess(train["device_bytes"], bytes_of["dit"] + train["working_bytes"] + driver)
        self.assertGreater(bytes_of["text_encoder"], 10 * driver)


if __name__ == "__main__":
    unittest.main()
