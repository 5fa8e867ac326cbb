"""Every published denoiser of Wan is named by `atelier inspect`, those that are not run yet too.

The files are headers of the published names and shapes.
"""
import json
import pathlib
import tempfile
import unittest

import program
from published_scripts import write_published

# Keys of what is run, with what it is taken as; and of what is not, with what it is called.
TAKEN = {
    "wan_t2v_1_3b": "wan2.1-t2v-1.3b",
    "wan_t2v_14b": "wan2.1-t2v-14b",
    "wan_i2v_14b": "wan2.1-i2v-14b",
    "wan_flf2v_14b": "wan2.1-i2v-14b-flf2v",
    "wan22_i2v_a14b": "wan2.2-i2v-a14b",
    "wan22_ti2v_5b": "wan2.2-ti2v-5b",
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
}
CALLED = {
    "wan22_s2v_original": "Wan2.2-S2V",
    "wan22_animate": "Wan2.2-Animate",
    "wan22_animate_original": "Wan2.2-Animate",
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
                others = ["vace"] if "vace" in variant else []
                self.assertEqual(others, [other["component"] for other in taken.get("others", [])])

    def test_the_motion_controller_is_taken(self):
        (told, component), = self.inspect({"wan_speed_controller": "motion_controller"}, code=0)
        self.assertEqual(("wan", component), (told["taken_by"]["family"], told["taken_by"]["component"]))

    def test_files_that_are_not_run_yet_are_named(self):
        for told, name in self.inspect(CALLED, code=2):
            with self.subTest(told["path"]):
                self.assertIn(name, told["refused"])
                self.assertIn("are loaded so far", told["refused"])
                self.assertIn("[UNSUPPORTED]", told["refused"])

    def test_every_table_of_keys_is_looked_at(self):
        told = {name.removesuffix("_original") for name in (*TAKEN, *CALLED)}
        there = {path.stem.removesuffix("_original") for path in (program.REPOSITORY / "tests/data/keys").glob("wan*.txt")}
        self.assertEqual(there - {"wan22_vae", "wan_speed_controller"}, told)


if __name__ == "__main__":
    unittest.main()
