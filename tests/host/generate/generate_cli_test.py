"""Runs `atelier generate` as a user would, on the tiny example model."""

import contextlib
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import time
import unittest

import program
from tiny_run import TinyRuns, pixels, png_chunks, png_text, write_tensors


def write_latents(path, shape):
    values = [((i * 7919) % 2001 - 1000) / 500 for i in range(math.prod(shape))]
    write_tensors(path, {"latents": (shape, values)})


class GenerateTest(TinyRuns):

    def command(self, **flags):
        defaults = dict(self.on_model, height=64, width=96, num_inference_steps=2, seed=3)
        return program.command("generate", **{**defaults, **flags})

    def run_program(self, stdin="", **flags):
        return program.run_line(self.command(**flags), cwd=self.dir, stdin=stdin)

    def succeed(self, **flags):
        result = self.run_program(**flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def fail_with(self, code, *words, **flags):
        before = list(self.dir.iterdir())
        result = self.run_program(**flags)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("load ", result.stderr)
        self.assertEqual(list(self.dir.iterdir()), before)
        return result.stderr

    def test_a_image_and_what_it_says(self):
        result = self.succeed(prompt="a cat, 一只猫",
                              negative_prompt="blurry",
                              cfg_scale=3,
                              output="cat.png")
        self.assertEqual(result.stdout, "cat.png\n")
        for word in ("load text_encoder", "GB/s", "encode prompt", "denoise: 2 steps", "decode",
                     "seed 3"):
            self.assertIn(word, result.stderr)
        path = self.dir / "cat.png"
        header = next(data for kind, data in png_chunks(path) if kind == b"IHDR")
        self.assertEqual(struct.unpack(">II", header[:8]), (96, 64))
        text = png_text(path)
        self.assertIn("a cat, 一只猫\nNegative prompt: blurry\nSteps: 2, Sampler: Euler",
                      text["parameters"])
        record = json.loads(text["atelier"])
        self.assertEqual(record["prompt"], "a cat, 一只猫")
        self.assertEqual((record["seed"], record["num_inference_steps"], record["cfg_scale"]),
                         (3, 2, 3.0))
        self.assertEqual(record["family"], "qwen_image")
        self.assertEqual(set(record["model_files"]), {"dit", "text_encoder", "vae"})
        self.assertNotIn(str(self.root), text["atelier"])
        self.assertEqual(path.stat().st_mode & 0o777, 0o666 & ~umask())

    def test_a_component_may_compute_in_another_dtype(self):
        for name, dtype in (("half", "bfloat16"), ("mixed", "bfloat16,vae=float32"), ("wide", "float32"),
                            ("named", "float32,vae=float32"), ("text", "float32,text_encoder=bfloat16")):
            self.succeed(prompt="a cat", dtype=dtype, output=f"{name}.png")
        records = {path.stem: json.loads(png_text(path)["atelier"]) for path in self.dir.glob("*.png")}
        self.assertEqual(records["mixed"]["dtypes"], {"vae": "Float"})
        self.assertEqual(records["mixed"]["dtype"], records["half"]["dtype"])
        self.assertEqual(records["text"]["dtypes"], {"text_encoder": "BFloat16"})
        for name in ("half", "wide", "named"):
            self.assertNotIn("dtypes", records[name])
        image = {name: pixels(self.dir / f"{name}.png") for name in records}
        self.assertEqual(image["wide"], image["named"])
        self.assertEqual(len(set(image.values())), 4)

    def test_quiet_runs_say_nothing_and_metadata_can_be_left_out(self):
        result = self.succeed(prompt="a cat", quiet=True, no_metadata=True)
        self.assertEqual(result.stderr, "")
        self.assertEqual(png_text(self.dir / "out.png"), {})

    def test_settings_come_from_a_file_and_folders_are_made(self):
        self.succeed(prompt="a cat", cfg_scale=3, output="said.png")
        (self.dir / "run.toml").write_text(f"""
            plugin = "qwen_image"
            model_paths = ["{self.model}"]
            prompt = "a cat"
            height = 64
            width = 96
            num_inference_steps = 2
            cfg_scale = 3.0
            seed = 4
            threads = 1
            output = "new/deep/read.png"
        """)
        words = ["generate", "--config", "run.toml", "--device", "cpu"]
        result = program.run(*words, "--seed", 3, code=0, cwd=self.dir)
        self.assertEqual(result.stdout, "new/deep/read.png\n")
        self.assertIn("made new/deep/\n", result.stderr)
        self.assertEqual(pixels(self.dir / "said.png"), pixels(self.dir / "new/deep/read.png"))
        with (self.dir / "run.toml").open("a") as file:
            file.write("steps_of_inference = 2\n")
        wrong = program.run(*words, "--output", "other/a.png", code=2, cwd=self.dir)
        self.assertIn("run.toml", wrong.stderr)
        self.assertIn("steps_of_inference", wrong.stderr)
        self.assertFalse((self.dir / "other").exists())

    def test_equal_seeds_give_equal_images_in_any_batch(self):
        flags = dict(prompt="a cat", cfg_scale=3, dtype="float32")
        self.succeed(**flags, num_images=3, batch_size=1, output="single.png")
        self.succeed(**flags, seed=4, output="alone.png")
        self.succeed(**flags, num_images=3, output="again_%02d.png")
        singles = [pixels(self.dir / f"single_{i}.png") for i in range(3)]
        self.assertEqual(len(set(singles)), 3)
        self.assertEqual(pixels(self.dir / "alone.png"), singles[1])
        self.assertEqual([pixels(self.dir / f"again_{i:02d}.png") for i in range(3)], singles)
        self.assertEqual(json.loads(png_text(self.dir / "single_1.png")["atelier"])["seed"], 4)

    def test_drawn_seeds_are_told_and_can_be_used_again(self):
        result = self.succeed(prompt="a cat", seed=None, output="drawn.png")
        seed = json.loads(png_text(self.dir / "drawn.png")["atelier"])["seed"]
        self.assertIn(f"seed {seed}", result.stderr)
        self.succeed(prompt="a cat", seed=seed, output="again.png")
        self.assertEqual(pixels(self.dir / "again.png"), pixels(self.dir / "drawn.png"))

    def test_settings_change_the_image(self):
        variants = {
            "plain": {},
            "steps": dict(num_inference_steps=4),
            "cfg": dict(cfg_scale=1),
            "prompt": dict(prompt="a dog"),
            "negative": dict(negative_prompt="night"),
            "schedule": dict(schedule="lightning", cfg_scale=4),
            "shift": dict(flow_shift=7),
            "truncated": dict(cfg_trunc=0.2),
            "clamped": dict(cfg_renorm="clamp", cfg_renorm_ratio=0.5),
            "by row": dict(cfg_renorm="row"),
            "sigmas": dict(sigmas="1,0.3"),
        }
        for name, flags in variants.items():
            self.succeed(
                **{
                    **dict(prompt="a cat",
                           num_inference_steps=3,
                           output=name + ".png",
                           dtype="float32"),
                    **flags
                })
        self.assertEqual(len({pixels(self.dir / (name + ".png")) for name in variants}),
                         len(variants))
        record = json.loads(png_text(self.dir / "clamped.png")["atelier"])
        self.assertEqual((record["cfg_renorm"], record["cfg_renorm_ratio"]), ("clamp", 0.5))
        self.assertNotIn("cfg_trunc", record)

    def test_latents_from_a_file_take_the_seeds_place(self):
        write_latents(self.dir / "noise.safetensors", [2, 16, 1, 8, 12])
        self.succeed(prompt="a cat",
                     latents="noise.safetensors",
                     num_images=2,
                     seed=1,
                     output="a.png")
        self.succeed(prompt="a cat",
                     latents="noise.safetensors",
                     num_images=2,
                     seed=2,
                     output="b.png")
        self.assertEqual(pixels(self.dir / "a_0.png"), pixels(self.dir / "b_0.png"))
        self.assertNotEqual(pixels(self.dir / "a_0.png"), pixels(self.dir / "a_1.png"))

    def test_image_to_image_and_tiles(self):
        self.succeed(prompt="a cat", height=128, width=160, output="first.png")
        self.succeed(prompt="a cat",
                     input_image="first.png",
                     denoising_strength=0.5,
                     output="second.png")
        self.succeed(prompt="a cat",
                     input_image="first.png",
                     height=160,
                     width=192,
                     tiled=True,
                     tile_size=96,
                     tile_stride=64,
                     output="third.png")
        record = json.loads(png_text(self.dir / "third.png")["atelier"])
        self.assertEqual((record["tile_size"], record["denoising_strength"]), (96, 0.6))

    def test_a_prompts_file_loads_the_model_once(self):
        (self.dir / "jobs.jsonl").write_text(
            '{"prompt": "a cat", "seed": 5}\n\n'
            '{"prompt": "a dog", "width": 64, "num_images": 2, "output": "dog.png"}\n'
        )
        result = self.succeed(prompts_file="jobs.jsonl", seed=9)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([line["output"] for line in lines],
                         [["out_1.png"], ["dog_0.png", "dog_1.png"]])
        self.assertEqual([line["seed"] for line in lines], [5, 9])
        self.assertEqual([line["line"] for line in lines], [1, 3])
        self.assertTrue(all(line["seconds"] >= 0 and "error" not in line for line in lines))
        for component in ("text_encoder", "dit", "vae"):
            self.assertEqual(result.stderr.count("load " + component), 1)
        self.succeed(prompt="a cat", seed=5, output="single.png")
        self.assertEqual(pixels(self.dir / "single.png"), pixels(self.dir / "out_1.png"))

    def test_a_wrong_line_of_a_prompts_file_stops_it_before_the_model_loads(self):
        (self.dir / "jobs.jsonl"
        ).write_text('{"prompt": "a"}\n{"promt": "b"}\n{"prompt": "c", "height": 100}\n')
        self.fail_with(2,
                       'jobs.jsonl:2: "promt" is not known; did you mean "prompt"?',
                       "jobs.jsonl:3: height: 100 is no multiple of 16; use 96 or 112",
                       prompts_file="jobs.jsonl")

    def test_wrong_lines_of_stdin_are_answered_and_skipped(self):
        result = self.run_program(
            stdin='{"prompt": "a"}\n{"prompt": "b", "steps": 3}\nnonsense\n{"prompt": "d"}\n',
            prompts_file="-")
        self.assertEqual(result.returncode, 2, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(["error" in line for line in lines], [False, True, True, False])
        self.assertIn("num_inference_steps", lines[1]["error"])
        self.assertEqual(lines[3]["output"], ["out_4.png"])

    def test_stdin_is_answered_line_by_line(self):
        with self.started(prompts_file="-", stdin=subprocess.PIPE) as process:
            for i in range(2):
                process.stdin.write(json.dumps({"prompt": "a", "output": f"{i}.png"}) + "\n")
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline())["output"], [f"{i}.png"])
            process.stdin.close()
            self.assertEqual(process.wait(60), 0)

    @contextlib.contextmanager
    def started(self, stdin=None, **flags):
        process = subprocess.Popen(self.command(**flags),
                                   cwd=self.dir,
                                   stdin=stdin,
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE,
                                   text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()

    def test_a_signal_keeps_finished_images_and_nothing_else(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
            name = signal.Signals(number).name
            with self.subTest(name), self.started(prompt="a cat", num_images=1000, num_inference_steps=4,
                                                  output=f"{name}_%d.png") as process:
                deadline = time.monotonic() + 60
                while not (self.dir / f"{name}_1.png").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.send_signal(number)
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, code, errors)
                self.assertEqual(number == signal.SIGINT, "[CANCELLED]" in errors)
                self.assertTrue((self.dir / f"{name}_0.png").exists())
            self.assertEqual(list(self.dir.glob(".atelier-tmp-*")), [])
        for path in self.dir.glob("*.png"):
            self.assertEqual(png_chunks(path)[-1][0], b"IEND")

    def test_control_c_ends_the_wait_for_stdin(self):
        with self.started(prompts_file="-", stdin=subprocess.PIPE) as process:
            process.stdin.write('{"prompt": "a"}\n')
            process.stdin.flush()
            self.assertIn("out_1.png", process.stdout.readline())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), 130)

    def test_every_mistake_is_told_at_once_before_weights_are_read(self):
        errors = self.fail_with(2,
                                "--height: 1000 is no multiple of 16; use 992 or 1008",
                                "--prompt is missing",
                                "--num_inference_steps: 0 is below 1",
                                '"quick"',
                                'there are "default", "lightning", "distill"',
                                "--input_image: absent.png",
                                "--inpaint_mask: none.png",
                                '"/dev/null" is no folder',
                                "--tile_stride: 300 is no multiple of 8",
                                height=1000,
                                num_inference_steps=0,
                                input_image="absent.png",
                                inpaint_mask="none.png",
                                output="/dev/null/such/out.png",
                                schedule="quick",
                                tiled=True,
                                tile_stride=300)
        self.assertIn("mistakes", errors.splitlines()[0])
        errors = self.fail_with(2, '"quick"', prompt="a cat", schedule="quick")
        self.assertEqual(len(errors.splitlines()), 1)

    def test_single_mistakes_are_one_line(self):
        write_latents(self.dir / "noise.safetensors", [1, 16, 8, 11])
        (self.dir / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
        (self.dir / "mask.png").write_bytes((program.REPOSITORY / "examples/shapes/hatched/000000.png").read_bytes())
        locked = self.dir / "locked"
        locked.mkdir(mode=0o500)
        cases = [
            (2, "did you mean --num_inference_steps?", dict(num_inference_step=3)),
            (2, "[1, 16, 8, 11], [1, 16, 1, 8, 12] expected", dict(latents="noise.safetensors")),
            (2, "broken.png", dict(input_image="broken.png")),
            (2, "does not end in .png", dict(output="out.tga")),
            (2, "denoising_strength", dict(denoising_strength=0.5)),
            (2, "there is no input image to keep", dict(inpaint_mask="mask.png")),
            (2, "--sigmas", dict(sigmas="0.5,1")),
            (2, "--cfg_scale", dict(cfg_scale="four")),
            (2, "plugin", dict(plugin="quen_image")),
            (2, "--threads", dict(threads=-1)),
        ]
        if os.geteuid() != 0:
            cases.append((2, "cannot write into the folder", dict(output="locked/out.png")))
        for code, word, flags in cases:
            with self.subTest(word=word):
                errors = self.fail_with(code, word, **{**dict(prompt="a cat"), **flags})
                self.assertEqual(len(errors.splitlines()), 1, errors)

    def test_sizes_below_one_are_the_users_mistake_and_no_plugins(self):
        errors = self.fail_with(2, "--height: -16 is below 1", "--width: 0 is below 1", prompt="a cat", height=-16, width=0)
        self.assertNotIn("PLUGIN", errors)
        self.assertNotIn("multiple", errors)
        (self.dir / "jobs.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "num_frames": -3}\n')
        self.fail_with(2, "jobs.jsonl:2: num_frames: -3 is below 1", prompts_file="jobs.jsonl")
        result = self.run_program(stdin='{"prompt": "a", "height": -16}\n', prompts_file="-")
        self.assertIn("stdin:1: height: -16 is below 1", json.loads(result.stdout)["error"])

    def test_a_folder_is_no_file_to_write(self):
        for name in ("d.png", "two_1.png"):
            (self.dir / name).mkdir()
        self.fail_with(2, '--output: "d.png" is a folder', prompt="a cat", output="d.png")
        self.fail_with(2, '--output: "two_1.png" is a folder', prompt="a cat", output="two.png", num_images=2)
        (self.dir / "jobs.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "output": "d.png"}\n')
        self.fail_with(2, 'jobs.jsonl:2: output: "d.png" is a folder', prompts_file="jobs.jsonl")

    def test_missing_files_and_components_are_named(self):
        self.fail_with(2,
                       "missing.safetensors",
                       prompt="a cat",
                       model_paths='["missing.safetensors"]')
        self.fail_with(2,
                       "vae",
                       "text_encoder",
                       prompt="a cat",
                       model_paths=json.dumps([str(self.model / "transformer")]))

    def test_a_gpu_that_is_not_there_is_an_environment_error(self):
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("there is a GPU")
        self.fail_with(3, "driver", prompt="a cat", device="cuda")

    def test_help_lists_the_flags_of_the_family_too(self):
        result = program.run("generate", "--help", code=0)
        for flag in ("--prompt", "--denoising_strength", "--prompts_file", "--tile_stride",
                     "--model_paths"):
            self.assertIn(flag, result.stdout)


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    unittest.main()
