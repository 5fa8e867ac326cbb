"""Walks through the flags that say where things rest: a plan takes each as the run takes it."""

import json
import re
import unittest

import program
from tiny_run import FolderTest, write_dataset

MODEL = program.REPOSITORY / "examples/shapes/model"
MIB = 1 << 20
UNITS = {"B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# A machine with the room of the simulated device below.
PROFILE = {"name": "elsewhere", "memory_gib": 64 / 1024, "tflops_16": 100, "tflops_32": 20, "attention_tflops": 80,
           "memory_gb_per_s": 500, "copy_gb_per_s": 12}
SIMULATED = "simulated:64MiB:1GB/s"

AWAY = {"offload": "dit=host"}
FULL = {"trainable_models": "dit"}
ON_HOST = {**FULL, "cpu_offload": True, "optimize_on_cpu": True}

# Flags, and what they change in the plan: component.key or phase.key, and the value or "less", "more" than without.
GENERATE = [
    (AWAY, {"dit.resident_blocks": 0, "dit.others": "host"}),
    ({"offload": "dit=disk"}, {"dit.resident_blocks": 0, "dit.others": "disk"}),
    ({"offload": "text_encoder=host"}, {"text_encoder.resident_blocks": 0, "dit.resident_blocks": 6}),
    ({**AWAY, "resident_blocks": 4}, {"dit.resident_blocks": 4}),
    ({"offload": "dit=host,text_encoder=host", "resident_blocks": "dit=2,text_encoder=1"},
     {"dit.resident_blocks": 2, "text_encoder.resident_blocks": 1}),
    ({**AWAY, "prefetch": 1}, {"dit.prefetch": 1}),
    ({"storage": "dit=fp8"}, {"dit.storage": "fp8", "dit.device_bytes": "less"}),
    ({"storage": "dit=int8,text_encoder=int8"}, {"dit.storage": "int8", "text_encoder.storage": "int8"}),
    ({"storage": "dit=nf4"}, {"dit.storage": "nf4", "dit.device_bytes": "less"}),
    ({"quant_options": f"{MODEL}:bitsandbytes_nf4/to_q,to_k"}, {"dit.storage": "nf4", "text_encoder.storage": "nf4"}),
    ({"fp8_models": str(MODEL)}, {"dit.storage": "fp8", "text_encoder.storage": "fp8"}),
    ({"storage": "dit=int8", "compute": "dit=w8a8"}, {"dit.storage": "int8"}),
    ({"allow_storage": "fp8"}, {"dit.storage": "plain"}),
    ({"allow_storage": "nf4,fp8"}, {"dit.storage": "plain"}),
    ({"dtype": "bfloat16"}, {"dit.device_bytes": "less"}),
    ({"dtype": "float32,vae=bfloat16"}, {"vae.device_bytes": "less"}),
    ({"dtype": "float32,text_encoder=bfloat16"}, {"text_encoder.device_bytes": "less"}),
    ({"cfg_batch": "off"}, {"denoise.working_bytes": "less"}),
    ({"cfg_scale": 1}, {"denoise.working_bytes": "less"}),
    ({"tiled": True, "tile_size": 64, "tile_stride": 48}, {"decode.working_bytes": "less"}),
    ({"num_images": 2, "batch_size": 2}, {"denoise.working_bytes": "more"}),
    ({"attention": "math"}, {}),
    ({"kernels": "composed"}, {}),
]
TRAIN = [
    ({"cpu_offload": True}, {"dit.resident_blocks": 0, "dit.others": "host"}),
    ({"enable_model_cpu_offload": True}, {"dit.resident_blocks": 0}),
    ({"cpu_offload": True, "resident_blocks": 3, "prefetch": 1}, {"dit.resident_blocks": 3, "dit.prefetch": 1}),
    (AWAY, {"dit.resident_blocks": 0}),
    ({"offload": "dit=disk"}, {"dit.resident_blocks": 0, "dit.others": "disk"}),
    ({"storage": "dit=fp8"}, {"dit.storage": "fp8"}),
    ({"storage": "dit=nf4"}, {"dit.storage": "nf4"}),
    (FULL, {"train.device_bytes": "more"}),
    ({**FULL, "cpu_offload": True}, {"dit.resident_blocks": 6, "text_encoder.resident_blocks": 0}),
    ({**FULL, **AWAY}, {"dit.resident_blocks": 0, "dit.others": "host"}),
    (ON_HOST, {"dit.resident_blocks": 0, "dit.others": "host"}),
    ({**FULL, "enable_model_cpu_offload": True, "enable_optimizer_cpu_offload": True}, {"dit.resident_blocks": 0}),
    ({**FULL, "optimize_on_cpu": True}, {"train.host_bytes": "more"}),
    ({**ON_HOST, "param_size_threshold": 1}, {"dit.resident_blocks": 0, "dit.device_bytes": "more"}),
    ({**ON_HOST, "cpu_offload_split_threshold": 1}, {"dit.device_bytes": "more"}),
    ({"activation_memory_budget": "none"}, {"train.strategy": "keep all activations"}),
    ({"activation_memory_budget": "full"}, {"train.strategy": "keep inputs of blocks"}),
    ({"activation_memory_budget": "0.5"}, {"train.working_bytes": "less"}),
    ({"activation_memory_budget": "1.5MiB"}, {"train.working_bytes": "less"}),
    ({"use_gradient_checkpointing": True}, {"train.strategy": "keep inputs of blocks"}),
    ({"use_gradient_checkpointing": True, "activation_memory_budget": "auto"},
     {"train.strategy": "keep all activations"}),
    ({"use_gradient_checkpointing_offload": True}, {"train.working_bytes": "less", "train.host_bytes": "more"}),
    ({"use_gradient_checkpointing_offload": True, "activation_memory_budget": "0.7"},
     {"train.working_bytes": "less"}),
    ({"batch_size": 2}, {"train.working_bytes": "more"}),
    ({"lora_rank": 64}, {"train.working_bytes": "more"}),
    ({"ema_decay": 0.9}, {"train.host_bytes": "more"}),
    ({**FULL, "dtype": "bfloat16"}, {"dit.device_bytes": "less"}),
    ({"dtype": "float32,text_encoder=bfloat16"}, {"text_encoder.device_bytes": "less"}),
    ({**FULL, "dtype": "bfloat16", "master_weights": "stochastic"}, {"dit.device_bytes": "less"}),
    ({**FULL, "optimizer_type": "AdamW8bit"}, {"train.working_bytes": "more"}),
    ({"height": 128, "width": 128}, {"train.working_bytes": "more"}),
]


def size_in(text, what):
    """Bytes behind a word in the line of the prediction."""
    number, unit = re.search(rf"{what} ([0-9.]+) (\w+)", text).groups()
    return float(number) * UNITS[unit]


class FlagsTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_dataset(cls.root / "data", count=4)
        (cls.root / "elsewhere.json").write_text(json.dumps(PROFILE))

    def words(self, command, flags):
        common = {"plugin": "qwen_image", "model_paths": json.dumps([str(MODEL)]), "dtype": "float32", "threads": 1}
        if command == "generate":
            common.update(prompt="a red circle", height=128, width=128, seed=1, num_inference_steps=2,
                          output=self.root / "out.png")
        else:
            data = self.root / "data"
            common.update(dataset_base_path=data, dataset_metadata_path=data / "metadata.csv", height=64, width=64,
                          max_train_steps=3, cache_path=self.root / "cache", save_state="false")
            if "trainable_models" not in flags:
                common.update(lora_base_model="dit", lora_rank=4)
        return program.command(**{**common, **flags})[1:]

    def run_program(self, *words):
        return program.run(*words, code=0, cwd=self.root)

    def plan(self, command, flags):
        path = self.root / "plan.json"
        output = [] if command == "generate" else ["--output_path", str(self.root / "planned")]
        result = self.run_program("plan", command, *self.words(command, flags), *output, "--json", str(path))
        plan = json.loads(path.read_text())
        parts = {entry["name"]: entry for entry in plan["components"] + plan["phases"]}
        return {f"{name}.{key}": value for name, entry in parts.items() for key, value in entry.items()}, result

    def measured(self, command, flags, number):
        output = [] if command == "generate" else ["--output_path", str(self.root / f"{command}{number}")]
        return self.run_program(command, *self.words(command, flags), *output, "--device", SIMULATED).stderr

    def tolerance(self, flags, plan):
        if "trainable_models" in flags and plan["train.host_bytes"] > 0:
            return 0.5  # how many gradients are on their way to the host is a matter of time
        if {"use_gradient_checkpointing_offload", "activation_memory_budget"} <= flags.keys():
            return 0.8  # the rate of copies is tried with a buffer of the device
        return 0.1

    def walk(self, command, table):
        places = [({"device": SIMULATED}, "simulated"), ({"device_profile": "elsewhere.json"}, "elsewhere")]
        without = {where: self.plan(command, place)[0] for place, where in places}
        for number, (flags, expected) in enumerate(table):
            plans = {}
            for place, where in places:
                with self.subTest(command=command, flags=flags, where=where):
                    plan, result = self.plan(command, {**flags, **place})
                    plans[where] = plan
                    self.assertNotIn("on the CPU", result.stderr)
                    for key, value in expected.items():
                        before = without[where][key]
                        if value == "less":
                            self.assertLess(plan[key], before, key)
                        elif value == "more":
                            self.assertGreater(plan[key], before, key)
                        else:
                            self.assertEqual(plan[key], value, key)
            with self.subTest(command=command, flags=flags, what="one plan for both"):
                for key in plans["elsewhere"]:
                    if key.endswith((".storage", ".resident_blocks", ".others", ".passes")):
                        self.assertEqual(plans["elsewhere"][key], plans["simulated"][key], key)
            with self.subTest(command=command, flags=flags, what="predicted and measured"):
                said = self.measured(command, flags, number)
                predicted, measured = size_in(said, "memory: predicted"), size_in(said, "measured")
                self.assertLess(abs(predicted - measured), self.tolerance(flags, plans["simulated"]) * measured,
                                said)

    def test_generation(self):
        self.walk("generate", GENERATE)

    def test_training(self):
        self.walk("train", TRAIN)

    def test_limits_are_those_that_were_said(self):
        for flags, limit in (({"vram": "32MiB"}, 32 * MIB), ({"vram": "auto"}, 64 * MIB), ({}, 64 * MIB)):
            for place in ({"device": SIMULATED}, {"device_profile": "elsewhere.json"}):
                path = self.root / "plan.json"
                self.run_program("plan", "generate", *self.words("generate", {**flags, **place}), "--json", str(path))
                self.assertEqual(json.loads(path.read_text())["limit_bytes"], limit)

    def test_graphs_take_memory_beside_what_a_step_takes(self):
        place = {"device_profile": "elsewhere.json"}
        plain, auto, graphs = (self.plan("generate", {**flags, **place})[0]
                               for flags in ({}, {"cuda_graphs": "auto"}, {"cuda_graphs": "on"}))
        self.assertEqual(plain, auto)
        self.assertGreater(graphs["denoise.working_bytes"], plain["denoise.working_bytes"])
        self.assertEqual(graphs["decode.working_bytes"], plain["decode.working_bytes"])
        result = program.run("plan", "generate", *self.words("generate", {"cuda_graphs": "on", "device": SIMULATED}),
                             code=2, cwd=self.root)
        self.assertIn("--cuda_graphs on: device cpu has no CUDA graphs; leave it out", result.stderr)

    def test_a_threshold_that_keeps_too_much_is_refused_by_the_plan(self):
        flags = {**ON_HOST, "param_size_threshold": 64}
        words = self.words("train", flags) + ["--output_path", str(self.root / "refused"), "--device",
                                              "simulated:8MiB:1GB/s"]
        for command in (["plan", "train"], ["train"]):
            result = program.run(*command, *words, code=4, cwd=self.root)
            self.assertIn("does not fit into 8.00 MiB", result.stderr)
            self.assertIn("without --param_size_threshold", result.stderr)


if __name__ == "__main__":
    unittest.main()
