#!/usr/bin/env python3
"""Completes command lines in a real bash, and reads the scripts with zsh and fish where they are."""

import shutil
import unittest

import program
from tiny_run import FolderTest

# What bash does at Tab, with the words as its line editor cuts them.
DRIVER = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_atelier
((${#COMPREPLY[@]})) && printf '%s\n' "${COMPREPLY[@]}"
true
"""


class Completion(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for shell in ("bash", "zsh", "fish"):
            result = program.run("completion", shell, code=0)
            assert result.stderr == "", result.stderr
            (cls.root / shell).write_text(result.stdout)
        (cls.root / "files").mkdir()
        for name in ("model one.safetensors", "moss.png"):
            (cls.root / "files" / name).touch()
        (cls.root / "files" / "models").mkdir()

    def offers(self, *words):
        result = program.run_line(["bash", "--norc", "-c", DRIVER, "bash", self.root / "bash", "atelier", *words],
                                  cwd=self.root / "files")
        self.assertEqual("", result.stderr)
        return result.stdout.splitlines()

    def test_commands_and_those_below_them(self):
        self.assertLessEqual({"generate", "train", "lora", "completion", "--help"}, set(self.offers("")))
        self.assertEqual(["train"], self.offers("tr"))
        self.assertEqual(["convert"], self.offers("lora", "c"))
        self.assertEqual({"generate", "serve", "train", "--help"}, set(self.offers("plan", "")))
        self.assertEqual([], self.offers("nothing", "--x"))

    def test_flags_of_each_command(self):
        offered = self.offers("train", "--lora_")
        self.assertLessEqual({"--lora_rank", "--lora_format", "--lora_base_model"}, set(offered))
        self.assertNotIn("--prompt", self.offers("train", "--"))
        self.assertIn("--prompt", self.offers("generate", "--"))
        self.assertIn("--device_profile", self.offers("plan", "train", "--"))
        self.assertIn("--lora_rank", self.offers("plan", "train", "--"))
        self.assertIn("--system_prompt", self.offers("generate", "--"), "flags of families are offered")
        self.assertIn("--help", self.offers("doctor", "--"))
        self.assertEqual(["--output"], self.offers("lora", "merge", "--plugin", "x", "--out"))

    def test_every_flag_of_the_help_is_offered(self):
        for command in (["generate"], ["train"], ["cache"], ["probe"], ["lora", "extract"], ["inspect"]):
            shown = program.run(*command, "--help").stdout
            flags = {line.split()[0] for line in shown.splitlines() if line.startswith("  --")}
            self.assertLessEqual(flags, set(self.offers(*command, "--")), command)

    def test_values(self):
        self.assertEqual(["auto", "float32", "bfloat16", "float16"], self.offers("train", "--dtype", ""))
        self.assertEqual(["bfloat16"], self.offers("train", "--dtype", "b"))
        self.assertEqual(["bfloat16"], self.offers("train", "--dtype", "=", "b"))
        self.assertEqual(4, len(self.offers("train", "--dtype", "=")))
        self.assertEqual(["cosine", "cosine_with_restarts"], self.offers("train", "--lr_scheduler", "cos"))
        self.assertLessEqual({"lumina2", "qwen_image"}, set(self.offers("generate", "--plugin", "")))
        self.assertEqual(["qwen_image"], self.offers("plugins", "show", "q"))
        self.assertEqual(["zsh"], self.offers("completion", "z"))
        self.assertEqual([], self.offers("train", "--height", ""))
        self.assertIn("--width", self.offers("generate", "--tiled", "--w"))

    def test_paths(self):
        self.assertEqual({"model one.safetensors", "models", "moss.png"},
                         set(self.offers("generate", "--model_paths", "mo")))
        self.assertEqual(["models"], self.offers("train", "--output_path", "m"))
        self.assertEqual(["moss.png"], self.offers("inspect", "mos"))
        self.assertEqual(["moss.png"], self.offers("generate", "--input_image", "=", "mos"))

    def test_other_shells_read_their_scripts(self):
        for shell, check in (("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])):
            script = self.root / shell
            self.assertIn("lora_rank", script.read_text())
            self.assertIn("qwen_image", script.read_text())
            if shutil.which(shell):
                result = program.run_line([*check, script])
                self.assertEqual((0, ""), (result.returncode, result.stderr), shell)
        if shutil.which("fish"):
            for line, offered in (("tr", "train"), ("lora c", "convert"), ("train --dtype b", "bfloat16"),
                                  ("generate --plugin q", "qwen_image")):
                result = program.run_line(["fish", "-c", f"source {self.root / 'fish'}; complete -C 'atelier {line}'"])
                self.assertIn(offered, result.stdout.split(), line)

    def test_wrong_shells_are_told(self):
        for words, said in ((["powershell"], "only for"), (["bahs"], "did you mean bash?"), ([], "is missing"),
                            (["bash", "zsh"], "one too many")):
            result = program.run("completion", *words, code=2)
            self.assertIn(said, result.stderr)
            self.assertEqual("", result.stdout)


if __name__ == "__main__":
    unittest.main()
