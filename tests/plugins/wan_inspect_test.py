"""Every published denoiser of Wan is told by `atelier inspect`.

The files are headers of the published names and shapes.
"""
import json
import pathlib
import tempfile
import unittest

import program
import published_sizes
from published_scripts import write_published

# Keys of what is run, with what it is taken as.
TAKEN = {
    "wan_t2v_1_3b": "wan2.1-t2v-1.3b",
    "wan_t2v_14b": "wan2.1-t2v-14b",
    "wan_i2v_14b": "wan2.1-i2v-14b",
    "wan_flf2v_14b": "wan2.1-i2v-14b-flf2v",
    "wan22_i2v_a14b": "wan2.2-i2v-a14b",
    "wan22_ti2v_5b": "wan2.2-ti2v-5b",
    "wan22_animate": "wan2.2-animate-14b",
    "wan22_animate_original": "wan2.2-animate-14b",
    "wan_fun_1_3b_inp_original": "wan2.1-i2v-1.3b",
    "wan_dancer_14b": "wan-dancer-14b-local",
    "wan_vace_1_3b": "wan2.1-vace-1.3b",
    "wan_vace_1_3b_original": "wan2.1-vace-1.3b",
    "wan_vace_14b": "wan2.1-vace-14b",
    "wan_vace_14b_original": "wan2.1-vace-14b",
    "wan_fun_1_3b_control_original": "wan2.1-fun-control-1.3b",
    "wan_fun_14b_control_original": "wan2.1-fun-control-14b",
    "wan_fun_v11_1_3b_control_original": "wan2.1-fun-control-v1.1-1.3b",
    "wan_fun_v11_14b_control_original": "wan2.1-fun-control-v1.1-14b",
    "wan22_fun_a14b_control_original": "wan2.2-fun-control-a14b",
    "wan_fun_v11_1_3b_camera_original": "wan2.1-fun-camera-1.3b",
    "wan_fun_v11_14b_camera_original": "wan2.1-fun-camera-14b",
    "wan22_fun_a14b_camera_original": "wan2.2-fun-camera-a14b",
    "longcat_video": "longcat-video",
    "wan22_s2v_original": "wan2.2-s2v-14b",
    "wan_vap_14b": "wan2.1-i2v-14b",
    "wan22_animate2": "wan2.2-animate2-14b",
    "wan22_animate2_original": "wan2.2-animate2-14b",
}


class WanInspect(unittest.TestCase):

    def inspect(self, tables, code):
        """What is told of a file for each table, beside what is looked for."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / keys / "model.safetensors" for keys in tables]
            for path in paths:
                write_published(path, path.parent.name)
            told = program.run("inspect", *paths, "--json", code=code).stdout.splitlines()
        self.assertEqual(len(tables), len(told))
        return [(json.loads(line), expected) for line, expected in zip(told, tables.values())]

    def test_files_that_are_run_are_taken(self):
        for told, variant in self.inspect(TAKEN, code=0):
            with self.subTest(variant):
                self.assertNotIn("refused", told)
                taken = told["taken_by"]
                self.assertEqual(("wan", "dit", variant), (taken["family"], taken["component"], taken["variant"]))
                name = pathlib.Path(told["path"]).parent.name
                others = [part for part in ("vace", "vap") if f"wan_{part}" in name]
                others += ["animate_adapter"] if "animate-" in variant else []
                self.assertEqual(others, [other["component"] for other in taken.get("others", [])])

    def test_the_audio_encoder_is_taken(self):
        (told, component), = self.inspect({"wav2vec2": "audio_encoder"}, code=0)
        self.assertEqual(("wan", component), (told["taken_by"]["family"], told["taken_by"]["component"]))

    def test_the_distilled_form_is_told_by_its_path(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "wan_animate_2_bf16_distillation.safetensors"
            write_published(path, "wan22_animate2_original")
            told = json.loads(program.run("inspect", path, "--json", code=0).stdout)
        self.assertEqual("wan2.2-animate2-14b-distill", told["taken_by"]["variant"])

    def test_the_motion_controller_is_taken(self):
        (told, component), = self.inspect({"wan_speed_controller": "motion_controller"}, code=0)
        self.assertEqual(("wan", component), (told["taken_by"]["family"], told["taken_by"]["component"]))

    def test_loras_of_all_denoisers_are_known(self):
        """Those of LongCat-Video have layers that no other denoiser has, and are published with other separators."""
        longcat = [f"blocks.{block}.{layer}" for block in (0, 1)
                   for layer in ("adaLN_modulation.1", "attn.qkv", "attn.proj", "cross_attn.q_linear", "cross_attn.kv_linear",
                                 "cross_attn.proj", "ffn.w1", "ffn.w2", "ffn.w3")]
        others = [f"blocks.{block}.{layer}" for block in (0, 1) for layer in ("self_attn.q", "cross_attn.v", "ffn.2")]
        with tempfile.TemporaryDirectory() as folder:
            for name, layers, separator in (("longcat", longcat, "."), ("published", longcat, "___lorahyphen___"),
                                            ("others", others, ".")):
                path = pathlib.Path(folder) / f"{name}.safetensors"
                before = "lora" + separator if separator != "." else "diffusion_model."
                published_sizes.write_holes(path, {
                    before + layer.replace(".", separator) + f".lora_{way}.weight": shape for layer in layers
                    for way, shape in (("down", [4, 8]), ("up", [8, 4]))})
                told = json.loads(program.run("inspect", path, "--json", code=0).stdout)["lora"]
                with self.subTest(name):
                    self.assertEqual(("wan", "dit", len(layers)), (told["family"], told["component"], told["known_layers"]))

    def test_every_table_of_keys_is_looked_at(self):
        told = {name.removesuffix("_original") for name in TAKEN}
        keys = program.REPOSITORY / "tests/data/keys"
        there = {path.stem.removesuffix("_original") for name in ("wan*.txt", "longcat*.txt") for path in keys.glob(name)}
        self.assertEqual(there - {"wan22_vae", "wan_speed_controller"}, told)


if __name__ == "__main__":
    unittest.main()
