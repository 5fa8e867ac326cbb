"""A family with controls through the program: one, several, none; planned, placed, trained, given LoRAs.

    controls_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import program
from PIL import Image
from tiny_run import floats, pixels, read_header, tensors, write_tensors

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
BASE = ("text_encoder", "vae", "dit")
SMALL = ["--prompt", "a cat", "--seed", 3, "--height", 16, "--width", 24]
STATE = ("trained", "optimizer", "ema")


def scaled(source, target, factor):
    """Writes a component whose weights are those of another one times a factor."""
    shutil.copytree(source, target)
    write_tensors(target / "model.safetensors", {
        name: (tensor[1], [factor * value for value in floats(tensor)])
        for name, tensor in tensors(source / "model.safetensors").items()})


def join(path, *parts):
    """Writes the tensors of several components into one file."""
    every = {name: tensor for part in parts for name, tensor in tensors(part / "model.safetensors").items()}
    write_tensors(path, {name: (tensor[1], floats(tensor)) for name, tensor in every.items()})


class Controls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_controls_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        program.run_line([WRITE_MODEL, PLUGIN, str(cls.folder / "model")], code=0)
        for number, factor in ((1, -0.5), (2, 2.0), (3, 0.1)):
            scaled(cls.folder / "model/controlnet", cls.folder / f"net{number}", factor)
        for number in range(2):
            Image.new("RGB", (24, 16), (200 * number, 90, 40)).save(cls.folder / f"{number}.png")
        rows = 'image,prompt,controlnet_image\n0.png,a cat,1.png\n1.png,a dog,0.png\n'
        (cls.folder / "rows.csv").write_text(rows)
        (cls.folder / "pairs.csv").write_text('image,prompt,controlnet_image\n0.png,a cat,"[""1.png"", ""0.png""]"\n')

    def run_program(self, *arguments, code=0):
        result = program.run(*arguments, code=code, cwd=self.folder)
        return result.stdout + result.stderr

    def model(self, *nets):
        """The flags of the model with these files beside the denoiser."""
        paths = [self.folder / "model" / name for name in BASE] + [self.folder / net for net in nets]
        return ["--plugin", PLUGIN, "--model_paths", json.dumps([str(path) for path in paths])]

    def draw(self, *more, nets=(), said=None):
        text = self.run_program("generate", *self.model(*nets), *SMALL, "--output", "x.png", *more)
        for line in said or []:
            self.assertIn(line, text)
        return pixels(self.folder / "x.png")

    def plan(self, *more, nets=(), device=("--device", "simulated", "--vram", "1GiB")):
        self.run_program("plan", "generate", *self.model(*nets), *SMALL, "--output", "x.png", *device,
                         "--json", self.folder / "plan.json", *more)
        return json.loads((self.folder / "plan.json").read_text())

    def images(self, *numbers):
        return [word for number in numbers for word in ("--controlnet_image", self.folder / f"{number}.png")]

    def refused(self, *more, nets=()):
        return self.run_program("generate", *self.model(*nets), *SMALL, "--output", "x.png", *more, code=2)

    def train(self, name, *more, nets=("model/controlnet",), rows="rows.csv", steps=4, code=0, launch=()):
        return self.run_program(*launch, "train", *self.model(*nets), "--dataset_base_path", self.folder,
                                "--dataset_metadata_path", self.folder / rows, "--extra_inputs", "controlnet_image",
                                "--cache_path", self.folder / "cache", "--learning_rate", 1e-2, "--save_steps", 1,
                                "--checkpoints_total_limit", 0, "--threads", 1, "--max_train_steps", steps,
                                "--output_path", self.folder / name, *more, code=code)

    def state(self, run, step):
        folder = self.folder / run / f"checkpoints/step-{step:08d}"
        return {name: tensors(folder / f"{name}.safetensors") for name in STATE
                if (folder / f"{name}.safetensors").is_file()}

    def test_it_passes_the_conformance_suite(self):
        said = self.run_program("check-plugin", PLUGIN)
        self.assertIn("controls: several controlnet are told apart", said)
        said = self.run_program("plugins", "show", PLUGIN)
        self.assertRegex(said, r"controlnet +optional to denoise beside dit, 3 files at most")

    def test_one_that_is_given_nothing_costs_nothing(self):
        plain = self.draw()
        nets = ("model/controlnet", "net1", "model/motion")
        said = self.run_program("generate", *self.model(*nets), *SMALL, "--output", "x.png")
        self.assertEqual(plain, pixels(self.folder / "x.png"))
        for name in ("controlnet", "motion"):
            self.assertNotIn(f"load {name}", said)
        plain_plan, idle, active = self.plan(), self.plan(nets=nets), self.plan(*self.images(0, 1), nets=nets)
        self.assertEqual(plain_plan["device_bytes"], idle["device_bytes"])
        weights = sum(part["device_bytes"] for part in active["components"] if part["name"].startswith("controlnet"))
        self.assertGreaterEqual(active["device_bytes"], idle["device_bytes"] + weights)

    def test_each_file_follows_its_own_image(self):
        one = self.draw(*self.images(0), nets=["model/controlnet"], said=["load controlnet:"])
        both = ("model/controlnet", "net1")
        two = self.draw(*self.images(0, 1), nets=both, said=["load controlnet:", "load controlnet.1:"])
        drawn = [self.draw(), one, two, self.draw(*self.images(0, 1), nets=both[::-1]),
                 self.draw("--speed", 2, nets=["model/motion"])]
        self.assertEqual(len(drawn), len(set(drawn)))
        # The order is that of the paths, or what hints say.
        hints = ["--model_hints", json.dumps({"*net1*": {"component": "controlnet.1"}})]
        self.assertEqual(two, self.draw(*self.images(0, 1), *hints, nets=both[::-1]))
        three = ("model/controlnet", "net1", "net2")
        orders = ((0, 1, 0), (1, 0, 0), (0, 0, 1))
        self.assertEqual(3, len({self.draw(*self.images(*order), nets=three) for order in orders}))

    def test_it_may_lie_in_the_denoisers_file(self):
        apart = self.draw("--speed", 2, nets=["model/motion"])
        folder = self.folder / "joined"
        folder.mkdir()
        join(folder / "model.safetensors", self.folder / "model/dit", self.folder / "model/motion")
        paths = [self.folder / "model/text_encoder", self.folder / "model/vae", folder]
        joined = ["--plugin", PLUGIN, "--model_paths", json.dumps([str(path) for path in paths])]
        for more, drawn in ((["--speed", 2], apart), ([], self.draw())):
            said = self.run_program("generate", *joined, *SMALL, "--output", "x.png", *more)
            self.assertEqual(drawn, pixels(self.folder / "x.png"))
            self.assertEqual(bool(more), "load motion" in said)

    def test_a_control_switches_itself_off_by_its_window(self):
        nets = ["model/controlnet"]
        plain, whole = self.draw(nets=nets), self.draw(*self.images(0), nets=nets)
        text = self.run_program("generate", *self.model(*nets), *SMALL, "--output", "x.png", *self.images(0),
                                "--controlnet_end", 0)
        self.assertEqual(plain, pixels(self.folder / "x.png"))
        self.assertNotIn("load controlnet", text)
        never, without = self.plan(*self.images(0), "--controlnet_end", 0, nets=nets), self.plan()
        self.assertEqual(without["device_bytes"], never["device_bytes"])
        self.assertEqual(whole, self.draw(*self.images(0), "--controlnet_end", 1, nets=nets))
        self.assertNotIn(self.draw(*self.images(0), "--controlnet_end", 0.5, nets=nets), (plain, whole))

    def test_a_plan_is_of_the_steps_in_which_a_control_runs(self):
        nets, seconds = ["model/controlnet"], []
        for window in (["--controlnet_end", 0], ["--controlnet_end", 0.5], ["--controlnet_start", 0.25], []):
            planned = self.plan(*self.images(0), *window, nets=nets, device=["--device_profile", "3060"])
            seconds.append(next(phase["seconds"] for phase in planned["phases"] if phase["name"].startswith("denoise")))
        self.assertEqual(sorted(seconds), seconds)
        never, half, late, whole = seconds
        self.assertLess(never, half)
        self.assertAlmostEqual(half - never, (whole - never) / 2, delta=(whole - never) / 20)
        self.assertAlmostEqual(late - never, 3 * (whole - never) / 4, delta=(whole - never) / 20)

    def test_a_plan_is_of_the_job_whose_control_runs(self):
        nets, planned = ["model/controlnet"], []
        job = {"prompt": "a cat", "controlnet_image": str(self.folder / "0.png")}
        idle, running = job | {"controlnet_end": 0}, job
        for jobs in ((idle, running), (running, idle), (idle, idle)):
            lines = [json.dumps(one | {"output": f"{number}.png"}) for number, one in enumerate(jobs)]
            (self.folder / "jobs.jsonl").write_text("\n".join(lines) + "\n")
            words = ["plan", "generate", *self.model(*nets), "--prompts_file", "jobs.jsonl", "--height", 16, "--width", 24,
                     "--device", "simulated", "--vram", "1GiB", "--json", self.folder / "plan.json"]
            self.run_program(*words)
            planned.append(json.loads((self.folder / "plan.json").read_text())["device_bytes"])
        self.assertEqual(planned[0], planned[1])
        self.assertGreater(planned[0], planned[2])

    def test_what_does_not_fit_is_told(self):
        four = ("model/controlnet", "net1", "net2", "net3")
        said = self.refused(*self.images(0), nets=four)
        self.assertIn("4 files are the component controlnet, and a model has at most 3 of it", said)
        self.assertEqual(1, said.count("error:"), said)
        said = self.refused(*self.images(0), nets=four[:2])
        self.assertIn("--controlnet_image: 1 value is given, and there are 2 files of the component controlnet", said)
        said = self.refused(*self.images(0, 1), nets=four[:1])
        self.assertIn("--controlnet_image: 2 values are given, and there is 1 file of the component controlnet", said)
        said = self.refused(*self.images(0))
        self.assertIn("--controlnet_image: is for the component controlnet, which is missing (follows an image)", said)
        self.assertIn("--speed: is for the component motion, which is missing", self.refused("--speed", 1))
        for component, told in (("controlnet.2", 'component "controlnet.2": 2 files are "controlnet", "controlnet.1"'),
                                ("controlnet.3", 'component "controlnet.3": controls has')):
            hints = ["--model_hints", json.dumps({"*net1*": {"component": component}})]
            self.assertIn(told, self.refused(*hints, *self.images(0, 1), nets=four[:2]))
        said = self.refused("--offload", "controlnet.5=host", nets=four[:2])
        self.assertIn('component "controlnet.5"', said)

    def test_where_and_as_what_it_rests_is_said_by_its_name(self):
        nets, images = ("model/controlnet", "net1"), self.images(0, 1)
        here = self.draw(*images, nets=nets)
        away = ["--device", "simulated", "--offload", "controlnet=host,controlnet.1=disk,dit=host",
                "--resident_blocks", "controlnet=1"]
        said = self.run_program("generate", *self.model(*nets), *SMALL, *images, "--output", "x.png", *away)
        self.assertEqual(here, pixels(self.folder / "x.png"))
        for name in ("dit", "controlnet", "controlnet.1"):
            self.assertRegex(said, rf"(?m)^{re.escape(name)}: .* copies|{re.escape(name)}: 0 of")
        stored = [self.draw(*images, "--storage", f"{name}={kind}", nets=nets)
                  for name in ("controlnet", "controlnet.1") for kind in ("fp8", "int8")]
        self.assertEqual(4, len({*stored} - {here}))
        self.assertNotEqual(here, self.draw(*images, "--dtype", "float32,controlnet.1=bfloat16", nets=nets))

    def test_one_number_places_it_with_the_denoiser(self):
        nets, images = ("model/controlnet", "net1"), self.images(0, 1)
        here = self.draw(*images, nets=nets)
        flags = [*self.model(*nets), *SMALL, *images, "--output", "x.png"]
        said = self.run_program("generate", *flags, "--device", "simulated:64MiB:1GB/s", "--vram", "0.01MiB", code=4)
        needed = re.search(r"needs ([0-9.]+) (KiB|MiB)", said)
        limit = int(1.02 * float(needed[1]) * {"KiB": 1, "MiB": 1024}[needed[2]]) + 1
        said = self.run_program("generate", *flags, "--device", f"simulated:{limit}KiB:1GB/s")
        self.assertEqual(here, pixels(self.folder / "x.png"))
        self.assertNotIn("out of memory", said)

    def test_it_is_trained_alone_and_resumed_to_the_bit(self):
        self.train("whole", "--trainable_models", "controlnet", "--ema_decay", 0.9)
        names = set(self.state("whole", 4)["trained"])
        self.assertTrue(names and all(name.startswith("controlnet.") for name in names), names)
        self.train("stopped", "--trainable_models", "controlnet", "--ema_decay", 0.9, steps=2)
        self.run_program("train", "--resume", self.folder / "stopped", "--max_train_steps", 4)
        self.assertEqual(self.state("whole", 4), self.state("stopped", 4))
        trained = self.folder / "whole/step-4.safetensors"
        self.assertEqual(set(read_header(self.folder / "model/controlnet/model.safetensors")) - {"__metadata__"},
                         set(read_header(trained)) - {"__metadata__"})
        before = self.draw(*self.images(0), nets=["model/controlnet"])
        self.assertNotEqual(before, self.draw(*self.images(0), nets=["whole/step-4.safetensors"]))
        other = self.train("stopped", "--trainable_models", "controlnet", "--ema_decay", 0.9, "--resume",
                           self.folder / "stopped", nets=["net1"], steps=5, code=2)
        self.assertIn("is of a run on other weights than those of", other)

    def test_what_it_learns_does_not_depend_on_where_things_rest(self):
        flags = ["--trainable_models", "controlnet", "--use_gradient_checkpointing"]
        self.train("kept", "--trainable_models", "controlnet", "--device", "cpu")
        kept = self.state("kept", 4)
        self.train("budget", *flags[:2], "--activation_memory_budget", 0.5)
        self.assertEqual(kept, self.state("budget", 4))
        for name, more in {"recomputed": [], "streamed": ["--device", "simulated", "--offload", "dit=host"],
                           "away": ["--device", "simulated", "--offload", "dit=host,controlnet=host",
                                    "--optimize_on_cpu"]}.items():
            self.train(name, *flags, *more)
            self.assertEqual(kept, self.state(name, 4), name)

    def test_it_is_planned_and_trained_within_one_number(self):
        self.train("unplanned", "--trainable_models", "controlnet", "--use_gradient_checkpointing", "--device", "cpu")
        flags = ["--trainable_models", "controlnet", "--device", "simulated:1GiB:1GB/s", "--vram", "1GiB"]
        self.train("planned", *flags)
        self.assertEqual(self.state("unplanned", 4), self.state("planned", 4))
        needs = {}
        for which in (["--trainable_models", "controlnet"], ["--trainable_models", "dit"]):
            self.train("plans", *which, "--device", "simulated:1GiB:1GB/s", "--vram", "1GiB", "--json",
                       self.folder / "plan.json", launch=["plan"])
            plan = json.loads((self.folder / "plan.json").read_text())
            needs[which[1]] = {part["name"]: part["device_bytes"] for part in plan["components"]}
        self.assertEqual(needs["controlnet"]["controlnet"], needs["dit"]["controlnet"])

    def test_what_is_encoded_ahead_does_without_it(self):
        cache = ["--dataset_metadata_path", self.folder / "rows.csv", "--extra_inputs", "controlnet_image"]
        self.run_program("cache", *self.model(), "--dataset_base_path", self.folder, *cache, "--cache_path",
                         self.folder / "ahead", "--output_path", self.folder / "encoded")
        flags = ["--trainable_models", "controlnet", "--learning_rate", 1e-2, "--save_steps", 4, "--threads", 1,
                 "--max_train_steps", 4]
        self.run_program("train", *self.model("model/controlnet"), "--task", "sft:train", "--cache_path",
                         self.folder / "ahead", *flags, "--output_path", self.folder / "from_ahead")
        self.train("at_once", "--trainable_models", "controlnet")
        self.assertEqual(self.state("at_once", 4)["trained"], self.state("from_ahead", 4)["trained"])

    def test_ranks_share_it(self):
        flags = ["--trainable_models", "controlnet", "--batch_size", 1]
        self.train("alone", *flags, "--gradient_accumulation_steps", 2)
        for stage in range(4):
            self.train(f"zero{stage}", *flags, "--zero_stage", stage, launch=["launch", "--nproc_per_node", 2, "--"])
            ours, theirs = (self.folder / run / "step-4.safetensors" for run in ("alone", f"zero{stage}"))
            for name, tensor in tensors(ours).items():
                apart = max(abs(a - b) for a, b in zip(floats(tensor), floats(tensors(theirs)[name])))
                self.assertLess(apart, 1e-5, (stage, name))

    def test_one_of_several_is_trained(self):
        self.train("second", "--trainable_models", "controlnet.1", nets=["model/controlnet", "net1"], rows="pairs.csv")
        self.assertTrue(all(name.startswith("controlnet.1.") for name in self.state("second", 4)["trained"]))
        trained = "second/step-4.safetensors"
        # The place in the list says which one a file is, whatever it was trained as.
        images, nets = self.images(0, 1), ("model/controlnet", "net1")
        drawn = {self.draw(*images, nets=(nets[0], trained)), self.draw(*images, nets=nets),
                 self.draw(*images, nets=(trained, nets[1]))}
        self.assertEqual(3, len(drawn))
        self.draw(*self.images(0), nets=[trained])
        said = self.train("wrong", "--trainable_models", "controlnet", nets=["model/controlnet", "net1"], code=2)
        self.assertIn("1 value is given, and there are 2 files of the component controlnet", said)
        said = self.train("wrong", "--trainable_models", "controlnet.1", code=2)
        self.assertIn("component controlnet.1 was not given", said)

    def test_a_control_that_does_not_run_is_not_trained(self):
        said = self.train("idle", "--trainable_models", "motion", nets=["model/controlnet", "model/motion"], code=2)
        self.assertIn("component motion is trained, and does not run: the rows have none of its inputs", said)
        self.assertIn('name one with --extra_inputs: "speed"', said)

    def test_loras_reach_it_and_the_denoiser_beside_it(self):
        nets = ["model/controlnet", "net1"]
        lora = ["--lora_rank", 2, "--lora_base_model"]
        images = self.images(0, 1)
        plain = self.draw(*images, nets=nets)
        for component in ("controlnet", "controlnet.1", "dit"):
            self.train(f"lora_{component}", *lora, component, nets=nets, rows="pairs.csv")
            file, trained = (self.folder / f"lora_{component}/step-4.safetensors",
                             self.state(f"lora_{component}", 4)["trained"])
            self.assertEqual(component, read_header(file)["__metadata__"]["atelier.component"])
            self.assertTrue(all(name.startswith(component + ".") for name in trained))
            self.assertNotEqual(plain, self.draw(*images, "--lora", file, nets=nets))
            self.assertEqual(component == "dit", self.draw("--lora", file, nets=nets) != self.draw(), component)
        # A file of one fits its other ones.
        file = self.folder / "lora_controlnet/step-4.safetensors"
        said = {self.draw(*images, "--lora", f"{file}:1@{name}", nets=nets) for name in ("controlnet", "controlnet.1")}
        self.assertEqual(2, len(said - {plain}))
        self.assertIn("is for the component controlnet, and the model is open without it",
                      self.refused("--lora", file, nets=[]))


if __name__ == "__main__":
    unittest.main()
