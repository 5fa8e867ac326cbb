"""Texts of too many tokens: told before a weight is read, or cut when that is asked for."""

import json
import unittest

import program
from tiny_run import TinyRuns, data_of, tensors, write_colors

# The tiny model's tokenizer gives a token for each letter here, and the template's end is among the
# 1024 that are encoded.
LIMIT = 1024
END = 5


def shapes(path):
    """The shapes of a safetensors file's tensors."""
    return {name: list(shape) for name, (_, shape, _) in tensors(path).items()}


class TextLengthsTest(TinyRuns):

    def setUp(self):
        super().setUp()
        write_colors(self.dir / "a.png", 64, 64, 1)

    def write_rows(self, lengths, name="rows.csv"):
        rows = [f"a.png,{i:04d}{'x' * (length - 4)}" for i, length in enumerate(lengths)]
        (self.dir / name).write_text("\n".join(["image,prompt", *rows]) + "\n")

    def run_program(self, *words, **flags):
        return program.run_line(program.command(*words, **self.on_model, **flags), cwd=self.dir)

    def on_rows(self, *words, **flags):
        defaults = dict(dataset_base_path=".", dataset_metadata_path="rows.csv", output_path="out",
                        lora_base_model="dit", lora_rank=2, max_train_steps=1)
        return self.run_program(*words, **{**defaults, **flags})

    def told(self, result):
        """The lines on texts that are too long; nothing was loaded or written."""
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("load ", result.stderr)
        self.assertFalse((self.dir / "out").exists())
        return [line.strip() for line in result.stderr.splitlines() if " tokens, at most " in line]

    def test_all_rows_are_told_before_anything_is_loaded(self):
        self.write_rows([10, LIMIT - END, LIMIT - END + 1, 20, 4006])
        with open(self.dir / "rows.csv", "a", encoding="utf-8") as rows:
            rows.write("none.png,a cat\n")
        for words in (["train"], ["cache"], ["cache", "--dry_run"], ["plan", "train"]):
            with self.subTest(command=words):
                result = self.on_rows(*words)
                lines = self.told(result)
                self.assertEqual(len(lines), 2, result.stderr)
                self.assertTrue(lines[0].startswith("rows.csv:4 [prompt]: 1025 tokens, at most 1024"))
                self.assertTrue(lines[1].startswith("rows.csv:6 [prompt]: 4011 tokens, at most 1024"))
                self.assertIn("--truncate_captions", lines[0])
                self.assertIn("none.png", result.stderr)  # and what is wrong beside

    def test_many_long_rows_are_counted(self):
        self.write_rows([2000] * 130)
        result = self.on_rows("cache", "--dry_run")
        self.assertEqual(len(self.told(result)), 100)
        self.assertIn("rows.csv: 30 more (long texts: 30)", result.stderr)

    def test_validation_rows_and_sample_prompts_are_counted_too(self):
        self.write_rows([10])
        self.write_rows([10, 1500], "held.csv")
        (self.dir / "prompts.txt").write_text(f"a fox\n{'y' * 1200}\na cat --n {'z' * 1300}\n")
        result = self.on_rows("train", validation_dataset_base_path=".",
                              validation_dataset_metadata_path="held.csv",
                              sample_prompts="prompts.txt")
        lines = self.told(result)
        self.assertEqual(len(lines), 3, result.stderr)
        self.assertIn("held.csv:3 [prompt]: 1505 tokens", lines[0])
        self.assertIn("prompts.txt:2: prompt: 1205 tokens", lines[1])
        self.assertIn("prompts.txt:3: negative_prompt: 1305 tokens", lines[2])

    def test_every_line_of_a_prompts_file_is_counted(self):
        jobs = [{"prompt": "a"}, {"prompt": "b" * 1100}, {"prompt": "c", "negative_prompt": "d" * 1200},
                {"prompt": "e", "negative_prompt": "f" * 1200, "cfg_scale": 1}]
        (self.dir / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
        small = dict(height=64, width=64, num_inference_steps=1)
        lines = self.told(self.run_program("generate", prompts_file="jobs.jsonl", **small))
        self.assertEqual(len(lines), 2)
        self.assertIn("jobs.jsonl:2: prompt: 1105 tokens", lines[0])
        self.assertIn("jobs.jsonl:3: negative_prompt: 1205 tokens", lines[1])
        lines = self.told(self.run_program("generate", prompt="g" * 1500, **small))
        self.assertEqual(len(lines), 1)
        self.assertIn("--prompt: 1505 tokens", lines[0])

        cut = self.run_program("generate", "--truncate_captions", prompts_file="jobs.jsonl", **small)
        self.assertEqual(cut.returncode, 0, cut.stderr)
        self.assertIn("2 texts have more than 1024 tokens and are cut there; the longest has 1205",
                      cut.stderr)

    def test_texts_are_cut_behind_the_last_token_that_fits(self):
        self.write_rows([10, 4006, LIMIT - END])
        with open(self.dir / "rows.csv", "a", encoding="utf-8") as rows:  # alike where it is cut
            rows.write("a.png,0001" + "x" * 1500 + "\n")
        result = self.on_rows("cache", "--truncate_captions")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("note: 2 texts have more than 1024 tokens and are cut there; the longest has "
                      "4011", result.stderr)
        manifest = json.loads((self.dir / "out/cache/manifest.json").read_text())
        files = [self.dir / "out/cache/text" / (item["text"] + ".safetensors")
                 for item in manifest["items"]]
        lengths = [shapes(file)["prompt_embeds"][0] for file in files]
        self.assertEqual(lengths, [10 + END, LIMIT, LIMIT, LIMIT])
        self.assertEqual(data_of(files[1]), data_of(files[3]))
        self.assertNotEqual(data_of(files[1]), data_of(files[2]))  # which has the template's end

        # What the cache holds is trained from, without its texts being counted again.
        result = self.on_rows("train", task="sft:train", cache_path="out/cache", output_path="run")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_dry_run_knows_the_bytes_of_what_is_cut(self):
        self.write_rows([10, 4006])
        dry = self.on_rows("cache", "--truncate_captions", "--dry_run")
        self.assertEqual(dry.returncode, 0, dry.stderr)
        self.assertIn("1 text has more than 1024 tokens and is cut there", dry.stderr)
        self.write_rows([10, LIMIT - END])
        self.assertEqual(self.on_rows("cache", "--dry_run").stdout, dry.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
