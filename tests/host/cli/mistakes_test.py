#!/usr/bin/env python3
"""What the program says to wrong command lines: everything at once, each mistake once, with what was meant."""

import json
import os
import re
import subprocess
import unittest

import program
from program import PROGRAM, REPOSITORY
from tiny_run import FolderTest

MODEL = str(REPOSITORY / "examples/shapes/model")


class Mistakes(FolderTest):

    def run_it(self, *words, code=2, stdin=""):
        result = program.run(*words, code=code, cwd=self.dir, stdin=stdin)
        self.lines = result.stderr.splitlines()
        return result

    def refused(self, *words, says=(), count=None, code=2):
        result = self.run_it(*words, code=code)
        lines = [line for line in self.lines if not line.startswith("note: ")]
        self.assertTrue(lines[0].startswith("error: "), result.stderr)
        told = [line.strip() for line in lines[1:]] or lines
        self.assertEqual(len(told), len(set(told)), f"told twice in\n{result.stderr}")
        for part in says:
            self.assertEqual(1, sum(part in line for line in told), f"{part!r} in\n{result.stderr}")
        if count is not None:
            self.assertEqual(count, len(told), result.stderr)
        return result

    def generate(self, *words, model=MODEL, **expected):
        return self.refused("generate", "--plugin", "qwen_image", "--model_paths", model, *words, **expected)

    def test_commands_get_the_nearest_one(self):
        for words, meant in ((["trian"], "train"), (["gnerate"], "generate"), (["prbe"], "probe"),
                             (["lora", "covnert"], "convert"), (["plan", "trian"], "train")):
            self.refused(*words, says=[f"did you mean {meant}?"], count=1)

    def test_what_two_checks_of_a_training_find_is_told_once(self):
        data = self.dir / "data"
        data.mkdir()
        source = next((REPOSITORY / "examples/shapes/hatched").glob("*.png"))
        (data / "a.png").write_bytes(source.read_bytes())
        (data / "a.txt").write_text("a circle")
        words = ["train", "--plugin", "qwen_image", "--model_paths", MODEL, "--dataset_base_path", data,
                 "--lora_base_model", "dit", "--device", "cpu"]
        for more, says in ((["--height", "64"], "--height: is given without --width"),
                           (["--enable_bucket", "--height", "64", "--width", "64"], "all images have one size"),
                           (["--enable_bucket", "--min_bucket_reso", "512", "--max_bucket_reso", "256"],
                            "512 is more than --max_bucket_reso 256"),
                           (["--max_pixels", "0"], "--max_pixels: 0 is less than 1"),
                           (["--dataset_repeat", "99999999999"], "--dataset_repeat: 99999999999 is more than"),
                           (["--lr_scheduler", "cosine_with_restarts", "--lr_scheduler_num_cycles", "0"],
                            "--lr_scheduler_num_cycles: 0 is outside"),
                           (["--lr_scheduler", "polynomial", "--lr_scheduler_power", "-3"],
                            "--lr_scheduler_power: -3 is outside"),
                           (["--extra_inputs", "edit_imag"], "did you mean edit_image?"),
                           (["--sample_prompts", "away.txt", "--sample_at_first"], "away.txt: No such file")):
            with self.subTest(" ".join(more)):
                result = self.refused(*words, *more, says=[says], count=1, code=2)
                self.assertNotIn("…", result.stderr)

    def test_a_launched_command_stands_behind_two_dashes(self):
        for words in (["--nproc_per_node", "2"], ["--nproc_per_node=2"], []):
            line = " ".join(["atelier launch", *words, "-- train …"])
            self.refused("launch", *words, "train", "--plugin", "qwen_image", "--height", "64",
                         says=[f"-- is missing before train; {line}"], count=1)
        self.refused("launch", "--nproc_per_node", "train", "--", "train", says=['"train" is neither auto nor'])

    def test_values_get_the_nearest_one(self):
        for flag, value, meant in (("--dtype", "bf16", "bfloat16"), ("--dtype", "fp16", "float16"),
                                   ("--dtype", "vae=bf16", "bfloat16"), ("--dtype", "bfloat16,vea=float32", "vae"),
                                   ("--lora_mode", "hto", "hot"), ("--cfg_batch", "onn", "on"),
                                   ("--cuda_graphs", "offf", "off"), ("--kernels", "fussed", "fused"),
                                   ("--kernels", "swiglu,norm_ropee", "norm_rope"),
                                   ("--schedule", "lightnin", "lightning"), ("--attention", "flsh", "flash"),
                                   ("--storage", "dit=fp88", "fp8"), ("--storage", "dti=fp8", "dit"),
                                   ("--cfg_renorm", "clmap", "clamp")):
            with self.subTest(f"{flag} {value}"):
                self.generate("--prompt", "x", flag, value, says=[f"did you mean {meant}?"], count=1)
        for flag, value, meant in (("--optimizer_type", "adamw8bits", "AdamW8bit"), ("--lr_scheduler", "cosin", "cosine"),
                                   ("--task", "sft:trian", "sft:train"), ("--lora_format", "comfi", "comfy"),
                                   ("--weighting_scheme", "cosmp", "cosmap"), ("--save_dtype", "bf16", "bfloat16"),
                                   ("--lora_base_model", "dti", "dit"),
                                   ("--kernels", "cudnn_attention_129", "cudnn_attention_128")):
            with self.subTest(f"{flag} {value}"):
                self.refused("train", "--plugin", "qwen_image", "--model_paths", MODEL, flag, value,
                             says=[f"did you mean {meant}?"])
        self.refused("generate", "--plugin", "qwen_imge", says=["did you mean qwen_image?"])
        self.refused("generate", "--plugin", "qwen_image", "--model_paths", MODEL, "--prompt", "x", "--fp8_models",
                     json.dumps([MODEL + "s", "a,b"]), says=["did you mean /", '"a,b" is no entry'], count=2)

    def test_codes_that_cannot_be_multiplied_are_named(self):
        self.generate("--prompt", "x", "--storage", "dit=nf4", "--compute", "dit=w8a8", says=["its weights rest as nf4"],
                      count=1)

    def test_flags_of_other_programs_are_answered(self):
        self.generate("--prompt", "x", "--lr", "1", "--guidance_scale", "3", "--true_cfg_scale", "4", "--torch_compile",
                      "--use_bf16", "--num_images_per_prompt", "2", "--vae_tiling",
                      says=["--lr is no flag of generate", "--guidance_scale is no flag of generate; use --cfg_scale",
                            "--true_cfg_scale is no flag of generate; use --cfg_scale", "operators are fused",
                            "use --dtype bfloat16", "use --num_images", "use --tiled"], count=7)
        self.refused("train", "--plugin", "qwen_image", "--lr", "1", "--torch_compile", "--use_bf16",
                     "--use_activation_checkpointing",
                     says=["--lr is a flag of other trainers; use --learning_rate",
                           "--torch_compile is a flag of kohya's trainers; operators are fused",
                           "use --dtype bfloat16", "use --use_gradient_checkpointing"])

    def test_a_missing_family_hides_no_other_mistake(self):
        self.refused("generate", "--prompt", "x", "--height", "tall", "--model_paths", "nowhere", "--seed", "x",
                     "--output", "/dev/null/where.png", "--vram", "much", "--widht", "64", "--tile_size", "1.5",
                     says=["--plugin is missing", "nowhere: No such file", '--height: "tall"', "--seed: ",
                           "is no folder", "--vram", "did you mean --width?", "--tile_size"], count=8)
        self.refused("generate", "--prompt", "x", "--height", "1000", "--model_paths", MODEL,
                     says=["--height: 1000 is no multiple"], count=1)
        for command in ("train", "cache"):
            self.refused(command, "--learning_rate", "much", "--batch_size", "0", "--dataset_base_path", "nowhere",
                         "--lora_base_model", "dit", "--model_paths", "absent",
                         says=["--plugin is missing", "--learning_rate: ", "--batch_size: 0", "nowhere", "absent"],
                         count=5)
            self.refused(command, "--model_paths", MODEL, "--dataset_base_path", "nowhere", "--lora_base_model", "dti",
                         "--learning_rate", "much",
                         says=["did you mean dit?", "--learning_rate: ", "nowhere"], count=3)
        self.refused("plan", "train", "--batch_size", "0", "--dataset_base_path", "nowhere",
                     says=["--plugin is missing", "--batch_size: 0", "nowhere"])

    def test_a_wrong_path_hides_nothing_and_is_told_once(self):
        self.generate("--prompt", "x", "--height", "a", model="nowhere",
                      says=["nowhere: No such file", "--height: "], count=2)
        data = self.dir / "data"
        data.mkdir()
        (data / "metadata.csv").write_text("image,prompt\nabsent.png,a\n")
        self.refused("train", "--plugin", "qwen_image", "--model_paths", "nowhere", "--dataset_base_path", data,
                     "--dataset_metadata_path", data / "metadata.csv", "--lora_base_model", "dit",
                     says=["nowhere: No such file", "absent.png"], count=2)

    def test_plain_prompts_are_one_mistake(self):
        (self.dir / "prompts.txt").write_text("a red circle\n" * 3000)
        result = self.generate("--prompts_file", "prompts.txt", count=1, says=["holds no JSON lines"])
        self.assertIn('{"prompt":"a red circle"}', result.stderr)
        (self.dir / "prompts.txt").write_text('{"prompt": "a"}\n' + "a red circle\n" * 3000)
        self.generate("--prompts_file", "prompts.txt", says=["and 2800 more"], count=201)

    def test_every_seed_makes_its_own_image(self):
        images = []
        for seed in (1 << 63, (1 << 64) - 1, 0):
            out = self.dir / f"{seed}.png"
            self.run_it("generate", "--plugin", "qwen_image", "--model_paths", MODEL, "--prompt", "a red circle",
                        "--height", "32", "--width", "32", "--num_inference_steps", "1", "--seed", seed, "--output", out,
                        "--no_metadata", code=0)
            self.assertIn(f"seed {seed}", "".join(self.lines))
            images.append(out.read_bytes())
        self.assertEqual(3, len(set(images)))
        self.generate("--prompt", "x", "--seed", 1 << 64, says=["is no seed"], count=1)

    def test_a_reader_that_leaves_ends_the_program_without_a_word(self):
        for words in (["train", "--help"], ["inspect", "--tensors", "--json", MODEL], ["plugins", "--json"]):
            with self.subTest(words):
                script = '"$@" | head -c 1 > /dev/null; echo ${PIPESTATUS[0]}'
                result = program.run_line(["bash", "-c", script, "bash", "sh", "-c", 'sleep 0.5; exec "$@"', "sh",
                                           *program.command(*words)])
                self.assertEqual("", result.stderr)
                self.assertIn(result.stdout.strip(), ("141", "0"))
        read, write = os.pipe()
        os.close(read)
        for words in (["train", "--help"], ["inspect", MODEL]):
            result = subprocess.run([PROGRAM, *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual((141, ""), (result.returncode, result.stderr))
        os.close(write)
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([PROGRAM, "train", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(3, result.returncode)
        self.assertIn("stdout: ", result.stderr)

    def test_images_are_told_one_by_one_and_a_reader_that_leaves_stops_them(self):
        words = program.command("generate", plugin="qwen_image", model_paths=MODEL, prompt="a red circle", height=32,
                                width=32, num_inference_steps=1, num_images=4, output="p.png", quiet=True)
        with subprocess.Popen(words, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
            self.assertEqual("p_0.png\n", made.stdout.readline())
            made.stdout.close()
            self.assertEqual("", made.stderr.read())
            self.assertEqual(141, made.wait(timeout=100))
        self.assertTrue((self.dir / "p_0.png").exists())
        self.assertFalse((self.dir / "p_3.png").exists())

    def test_a_timeline_may_lie_in_the_folder_that_the_run_makes(self):
        program.write_tiny_model(self.dir / "tiny")
        data = self.dir / "data"
        data.mkdir()
        source = next((REPOSITORY / "examples/shapes/hatched").glob("*.png"))
        (data / "a.png").write_bytes(source.read_bytes())
        (data / "a.txt").write_text("a circle")
        (self.dir / "prompts.txt").write_text("a circle --w 32 --h 32 --s 1 --l 1\n")
        words = ["train", "--plugin", "qwen_image", "--model_paths", self.dir / "tiny", "--dataset_base_path", data,
                 "--lora_base_model", "dit", "--max_train_steps", "1", "--max_pixels", "1024", "--output_path", "OUT",
                 "--sample_prompts", "prompts.txt", "--sample_at_first", "--device", "cpu"]
        self.refused(*words, "--report_memory", "OUT/x/memory", "--batch_size", "0", says=["--batch_size"], count=1)
        self.assertFalse((self.dir / "OUT").exists(), "nothing is made before everything is checked")
        self.refused(*words, "--report_memory", "OUTER/memory", says=["its folder is not there"], count=1)
        self.run_it(*words, "--report_memory", "OUT/x/memory", code=0)
        rows = (self.dir / "OUT/x/memory.csv").read_text().splitlines()[1:]
        phases = [re.sub(r" \d+$", "", row.split(",")[1]) for row in rows]
        order = list(dict.fromkeys(phases))
        self.assertLess(order.index("load"), order.index("sample"))
        self.assertLess(order.index("sample"), order.index("forward"))
        self.assertTrue((self.dir / "OUT/x/memory.svg").exists())


if __name__ == "__main__":
    unittest.main()
