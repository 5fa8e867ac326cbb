"""What the ranks of a machine hold: streamed weights once for all of them, and parts of a model while it is loaded.

    machine_memory_test.py WAN_PLUGIN WRITE_MODEL
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import divided_test
import program
import wan_training_test as wan
from rank_runs import LORA
from ranks import children, free_port, launched, place
from tiny_run import losses, pixels, tensors

STREAMED = dict(LORA, device="simulated", cpu_offload=True)
MIB = 2**20
BLOCKS = 6
# Blocks of the models in which memory is measured: enough that the fewer ones, too, are more than what encoding leaves.
FEW, MANY = 48, 144

# Runs a command and prints its largest resident set. A process counts what its parent held when it was started, which
# here is this test with the libraries that it loaded.
MEASURED = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""

# Name: flags. Of each the base is frozen, and streamed from the host.
KINDS = {
    "plain": {},
    "as in the file": dict(dtype="bfloat16"),
    "fp8": dict(storage="dit=fp8", dtype="bfloat16"),
    "int8": dict(storage="dit=int8"),
    "some stay": dict(resident_blocks=2, prefetch=1),
    "one slot": dict(prefetch=0),
}


def write_blocks(model, count):
    """Makes the denoiser one of so many blocks, all with the weights of its first one."""
    folder = model / "transformer"
    known = {}
    for path in folder.glob("diffusion_pytorch_model*"):  # shards, and what says which they are
        if path.suffix == ".safetensors":
            known |= tensors(path)
        path.unlink()
    path = folder / "diffusion_pytorch_model.safetensors"
    first = "transformer_blocks.0."
    names = {name: name for name in known if not name.startswith("transformer_blocks.")}
    names |= {f"transformer_blocks.{i}.{name.removeprefix(first)}": name
              for i in range(count) for name in known if name.startswith(first)}
    header, end = {}, 0
    for name, source in names.items():
        dtype, shape, data = known[source]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for source in names.values():
            file.write(known[source][2])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_layers": count}))


def mapped(pid, field, is_wanted):
    """Bytes of a process in mappings whose line is wanted, as /proc/PID/smaps counts them."""
    total, counts = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = is_wanted(line)
        elif counts and line.startswith(field + ":"):
            total += 1024 * int(line.split()[1])
    return total


def shared(pid, field="Pss"):
    return mapped(pid, field, lambda line: "memfd:atelier_slabs" in line)


def own(pid):
    return mapped(pid, "Anonymous", lambda line: True)


class MachineMemoryTest(divided_test.DividedRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.few, cls.many = cls.root / "few", cls.root / "many"
        for model, count in ((cls.few, FEW), (cls.many, MANY)):
            program.write_tiny_model(model)
            write_blocks(model, count)
        cls.block = divided_test.block_bytes(cls.model)  # in float32

    def assert_told(self, said, component, blocks, share=1.0):
        """That so many bytes, a share of what the host holds of the component, are those of all processes."""
        told = re.search(rf"{component}: .*the host held ([\d.]+) (\w+), of which the processes of the machine have "
                         r"([\d.]+) (\w+) together", said)
        self.assertTrue(told, said)
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
        held, together = (float(told[i]) * units[told[i + 1]] for i in (1, 3))
        self.assertAlmostEqual(together / held, share, delta=0.03)
        self.assertAlmostEqual(together / blocks, 1, delta=0.03)

    def measure(self, ranks, name, **flags):
        """Bytes that each process has to itself, and those that all share, while a model of many blocks is trained."""
        process = self.start(ranks, name, **{**STREAMED, "model_paths": json.dumps([str(self.many)]), **flags})
        pids = children(process) if ranks > 1 else [process.pid]
        seen = [own(pid) for pid in pids], sum(shared(pid) for pid in pids)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, said)
        return *seen, said

    def test_two_ranks_hold_a_streamed_base_once(self):
        (alone,), none, _ = self.measure(1, "alone")
        self.assertEqual(none, 0)
        base = MANY * self.block
        both, together, said = self.measure(2, "both")
        self.assertAlmostEqual(together / base, 1, delta=0.03)
        for process in both:
            self.assertLess(process, alone - 0.9 * base)
        self.assert_told(said, "dit", base)

    def test_two_ranks_have_the_bits_of_one(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                self.assert_same_bits(name.replace(" ", "_").replace(",", ""), **{**STREAMED, "zero_stage": 0, **flags})
                self.assertIn("together", self.said)

    def test_stages_that_share_out_the_optimizer_share_the_base_as_well(self):
        flags = dict(STREAMED, global_batch_size=2, max_grad_norm=0)
        runs = [self.train(2, f"stage_{stage}", zero_stage=stage, **flags) for stage in (0, 1, 2)]
        weights = [tensors(run / "step-10.safetensors") for run in runs]
        self.assertTrue(weights[0] == weights[1] == weights[2])
        self.assert_told(self.said, "dit", BLOCKS * self.block)

    def test_what_is_trained_is_not_shared(self):
        run = self.train(2, trainable_models="dit", max_train_steps=2, save_steps=2,
                         device="simulated", cpu_offload=True, optimize_on_cpu=True)
        self.assertTrue(losses(run))
        self.assertIn("dit: 0 of 6 blocks", self.said)
        self.assertNotRegex(self.said, "dit: .* together")

    def test_a_rank_that_is_killed_leaves_the_others_what_they_have(self):
        process = self.start(2, **STREAMED)
        os.kill(children(process)[0], signal.SIGKILL)  # whose memory it is
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 6, said)
        self.assertRegex(said, r"rank 0 \(.*\) is lost")

    def test_pictures_that_processes_make_together_are_those_of_one(self):
        wan.write_model(self.dir / "wan")
        jobs = [{"prompt": f"number {i}", "seed": i} for i in range(3)]
        (self.dir / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
        families = {
            "qwen_image": dict(model_paths=json.dumps([str(self.model)]), height=64, width=96,
                               offload="dit=host,text_encoder=host"),
            # One expert follows the other: its blocks come before that one's last call.
            wan.PLUGIN: dict(model_paths=wan.model_paths(self.dir / "wan"), num_frames=9,
                             height=32, width=48, offload="dit=host,dit2=host,text_encoder=host"),
        }
        for plugin, flags in families.items():
            for jobs in (dict(prompt="a red circle", output="out_%02d.png" if "num_frames" in flags else "out.png"),
                         dict(prompts_file=self.dir / "jobs.jsonl")):
                made = []
                for ranks in (1, 2, 4) if "prompts_file" in jobs else (1, 2):
                    folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
                    how = dict(cfg_batch="off") if ranks == 1 else dict(cfg_parallel=True)
                    line = program.command("generate", plugin=plugin, negative_prompt="grey", cfg_scale=4, seed=5,
                                           num_inference_steps=4, device="simulated", dtype="float32", threads=1,
                                           prefetch=1, **flags, **jobs, **how)
                    said = program.run_line(launched(ranks, line), code=0, cwd=folder).stderr
                    made.append({path.name: pixels(path) for path in folder.rglob("*.png")})
                    self.assertEqual("together" in said, ranks > 1, said)
                self.assertTrue(made[0])
                for other in made[1:]:
                    self.assertEqual(made[0], other)

    def peaks(self, ranks, name, **flags):
        """The largest resident set of each process of a step."""
        port = free_port()
        line = self.line(1, name, max_train_steps=1, save_steps=1, global_batch_size=2, **{**LORA, "lora_rank": 1, "prefetch": 0, **flags})
        processes = []
        for rank in range(ranks):
            env = {**os.environ, **place(rank, ranks, port)}
            with open(self.dir / f"{name}_{rank}.log", "w") as log:
                processes.append(subprocess.Popen([sys.executable, "-S", "-c", MEASURED, *line], stderr=log,
                                                  stdout=subprocess.PIPE, text=True, env=env))
        used = []
        for rank, process in enumerate(processes):
            said, _ = process.communicate()
            self.assertEqual(process.returncode, 0, (self.dir / f"{name}_{rank}.log").read_text())
            used.append(1024 * int(said.split()[-1]))
        return used

    def test_loading_never_holds_a_whole_model_beside_a_part(self):
        for name, flags, size in (("converted", dict(dtype="float32"), 1), ("mapped", dict(dtype="bfloat16"), 0.5),
                                  ("on the host", dict(dtype="float32", device="simulated", cpu_offload=True), 1)):
            with self.subTest(name):
                most = {}
                for model in (self.few, self.many):
                    most[model] = max(self.peaks(2, f"{name} {model.name}", zero_stage=3,
                                                 model_paths=json.dumps([str(model)]), **flags))
                more, whole = most[self.many] - most[self.few], (MANY - FEW) * self.block * size
                # Half of each block rests here; what a step keeps of a block is a twentieth of it.
                self.assertGreater(more / whole, 0.4)
                self.assertLess(more / whole, 0.6)


if __name__ == "__main__":
    unittest.main()
