"""`atelier train` started by other launchers, with the files of examples/distributed/: the same bits by each of them.

torchrun is run itself. srun, mpirun and the operator of PyTorchJob are replayed: processes get the variables that these
set.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

import program
import yaml
from ranks import children, free_port, launched
from tiny_run import TARGETS, TinyRuns, losses, state_of, write_dataset

EXAMPLES = program.REPOSITORY / "examples/distributed"
LAUNCHERS = program.REPOSITORY / "tests/data/launchers"
STEPS = 3
# As srun does in one step of TASKS processes on one machine (man srun): a signal goes to all tasks; with
# --kill-on-bad-exit=1 the others get SIGTERM as soon as one has ended with another code than 0, and SIGKILL 30 seconds
# later; the highest code is its own. It writes the flags that it got to srun.flags.
FAKE_SRUN = f"""#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time
words = sys.argv[1:]
flags = [words.pop(0) for word in list(words) if words[0].startswith("--")]
open("srun.flags", "w").write(json.dumps(flags))
tasks = int(os.environ.get("TASKS", "2"))
common = dict(SLURM_JOB_ID="{os.getpid()}", SLURM_STEP_ID="0", SLURM_NTASKS=str(tasks), SLURM_NODEID="0",
              SLURM_STEP_TASKS_PER_NODE=str(tasks), SLURM_JOB_NODELIST="localhost")
running = {{subprocess.Popen(words, env={{**os.environ, **common, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}})
           for task in range(tasks)}}
def send(number, _=None):
    for task in list(running):
        task.send_signal(number)
signal.signal(signal.SIGUSR1, send)
open("srun.pid", "w").write(str(os.getpid()))
highest, kill_at = 0, None
while running:
    for task in [task for task in running if task.poll() is not None]:
        running.discard(task)
        code = task.returncode if task.returncode >= 0 else 128 - task.returncode
        highest = max(highest, code)
        if code and kill_at is None and "--kill-on-bad-exit=1" in flags:
            kill_at = time.monotonic() + 30
            send(signal.SIGTERM)
    if kill_at is not None and time.monotonic() > kill_at:
        send(signal.SIGKILL)
    time.sleep(0.0005)
sys.exit(highest)
"""
CPUS = {"SLURM_CPUS_PER_TASK": "8"}  # as the job's --cpus-per-task=8 sets it


class LaunchersTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_dataset(cls.root / "data", count=5)
        cls.reference = cls.root / "reference"
        program.run_line(launched(2, program.command("train", *cls.words(cls.root, output_path=cls.reference))), code=0)

    @classmethod
    def words(cls, folder, **flags):
        defaults = dict(plugin="qwen_image", model_paths=[str(cls.root / "model")], device="cpu", dtype="float32",
                        dataset_base_path=str(cls.root / "data"),
                        dataset_metadata_path=str(cls.root / "data/metadata.csv"), max_pixels=64 * 64,
                        lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4, learning_rate=1e-3,
                        max_train_steps=STEPS, save_steps=STEPS, num_epochs=99, threads=1, enable_csv_log=True,
                        global_batch_size=4, cache_path=str(cls.root / "cache"))
        file = folder / "run.toml"
        given = {**defaults, **{name: str(value) if isinstance(value, pathlib.Path) else value
                                for name, value in flags.items()}}
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items() if value is not None))
        return ["--config", str(file)]

    def setUp(self):
        super().setUp()
        bin_folder = self.dir / "bin"
        bin_folder.mkdir()
        (bin_folder / "atelier").symlink_to(program.PROGRAM)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PET_"))}
        self.env = {**kept, "PATH": f"{bin_folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

    def add_program(self, name, text):
        path = self.dir / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, words, **environment):
        process = subprocess.Popen([str(word) for word in words], cwd=self.dir, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env={**self.env, **environment})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, code=0):
        said, _ = process.communicate(timeout=280)
        self.assertEqual(process.returncode, code, said)
        return said

    def assert_same_bits(self, run):
        self.assertEqual(state_of(self.reference, STEPS), state_of(run, STEPS))
        self.assertTrue(state_of(run, STEPS))

    def wait_for_step(self, run, process):
        for _ in range(1200):
            if (run / "loss.csv").exists() and losses(run):
                return
            self.assertIsNone(process.poll())
            time.sleep(0.1)
        self.fail("no step in two minutes")

    def test_launch_sh(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run)
        self.finish(self.start([EXAMPLES / "launch.sh", "run.toml"], NPROC_PER_NODE="2"))
        self.assert_same_bits(run)

    def test_torchrun_sh(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run)
        self.finish(self.start([EXAMPLES / "torchrun.sh", "run.toml"], NPROC_PER_NODE="2"))
        self.assert_same_bits(run)

    def test_torchrun_goes_on_after_a_process_has_died(self):
        run, steps = self.dir / "run", 40
        self.words(self.dir, output_path=run, max_train_steps=steps, save_steps=2)
        process = self.start([EXAMPLES / "torchrun.sh", "run.toml"], NPROC_PER_NODE="2")
        self.wait_for_step(run, process)
        os.kill(children(process)[1], signal.SIGKILL)
        said = self.finish(process)
        self.assertIn("is lost", said)
        self.assert_bits_of_a_whole_run(run, steps)

    def test_torchrun_of_two_machines_goes_on_after_a_process_has_died(self):
        """Each agent counts restarts for itself: one sees its process die, the other one is asked to come again."""
        run, steps, head = self.dir / "run", 40, f"localhost:{free_port()}"
        self.words(self.dir, output_path=run, max_train_steps=steps, save_steps=2)
        agents = [self.start([EXAMPLES / "torchrun.sh", "run.toml"], NNODES="2", NPROC_PER_NODE="1", HEAD=head)
                  for _ in range(2)]
        self.wait_for_step(run, agents[0])
        os.kill(children(agents[1])[0], signal.SIGKILL)
        said = [self.finish(agent) for agent in agents]
        self.assertLessEqual(said[0].count("is lost"), 1, said[0])  # those who came again have met
        self.assertNotIn("is lost", said[1])
        self.assert_bits_of_a_whole_run(run, steps)

    def test_torchrun_passes_a_signal_on_and_says_nothing_of_it_by_its_code(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run, max_train_steps=100000, save_steps=100000)
        process = self.start([EXAMPLES / "torchrun.sh", "run.toml"], NPROC_PER_NODE="2")
        self.wait_for_step(run, process)
        process.send_signal(signal.SIGUSR1)
        self.finish(process, code=1)
        self.assertTrue(state_of(run, max(losses(run))))

    def test_torchrun_starts_again_after_a_signal_to_one_process(self):
        run, steps = self.dir / "run", 40
        self.words(self.dir, output_path=run, max_train_steps=steps, save_steps=steps)
        process = self.start([EXAMPLES / "torchrun.sh", "run.toml"], NPROC_PER_NODE="2")
        self.wait_for_step(run, process)
        os.kill(children(process)[1], signal.SIGUSR1)
        said = self.finish(process)
        self.assertIn("stopped after step", said)
        self.assert_bits_of_a_whole_run(run, steps)

    def assert_bits_of_a_whole_run(self, run, steps):
        whole = self.dir / "whole"
        program.run_line([program.PROGRAM, "launch", "--nproc_per_node", "2", "--", "train",
                          *self.words(self.dir, output_path=whole, max_train_steps=steps, save_steps=steps)], code=0)
        self.assertEqual(state_of(whole, steps), state_of(run, steps))

    def test_slurm_sbatch(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run)
        self.add_program("srun", FAKE_SRUN)
        self.finish(self.start(["bash", EXAMPLES / "slurm.sbatch", "run.toml"], SLURM_JOB_ID="1", **CPUS))
        self.assertEqual(json.loads((self.dir / "srun.flags").read_text()), ["--kill-on-bad-exit=1", "--cpus-per-task=8"])
        self.assert_same_bits(run)

    def test_slurm_queues_again_what_its_signal_stopped(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run, max_train_steps=100000, save_steps=100000)
        self.add_program("srun", FAKE_SRUN)
        self.add_program("scontrol", "#!/bin/sh\necho \"$@\" > requeued\n")
        process = self.start(["bash", EXAMPLES / "slurm.sbatch", "run.toml"], SLURM_JOB_ID="17", TASKS="4",
                             **CPUS)
        self.wait_for_step(run, process)
        os.kill(int((self.dir / "srun.pid").read_text()), signal.SIGUSR1)
        self.finish(process, code=75)
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 17\n")
        self.assertTrue(state_of(run, max(losses(run))))

    def test_signals_of_the_whole_group_and_of_launch_are_one(self):
        run = self.dir / "run"
        words = self.words(self.dir, output_path=run, max_train_steps=100000, save_steps=100000)
        process = self.start(["atelier", "launch", "--nproc_per_node", "2", "--", "train", *words])
        self.wait_for_step(run, process)
        for one in (process.pid, *children(process)):  # as systemd and srun do
            os.kill(one, signal.SIGTERM)
        self.finish(process, code=75)
        self.assertTrue(state_of(run, max(losses(run))))

    def test_a_signal_before_there_is_anything_to_save(self):
        port = free_port()
        words = self.words(self.dir, output_path=self.dir / "run")
        process = self.start(["atelier", "train", *words], RANK="0", WORLD_SIZE="2", LOCAL_RANK="0",
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        for _ in range(600):  # until it waits for the other one
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR2)  # there is nothing to save
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.finish(process, code=75)

    def test_pytorchjob_yaml(self):
        run = self.dir / "run"
        self.words(self.dir, output_path=run)
        job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
        self.assertEqual(job["spec"]["nprocPerNode"], "8")
        port, pods = str(free_port()), []
        for number, role in enumerate(("Master", "Worker")):
            container = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"][0]
            self.assertEqual(container["name"], "pytorch")  # the operator looks for it
            pod = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
            self.assertGreater(pod["terminationGracePeriodSeconds"], 30)  # Kubernetes' default, too short for saving
            memory = [volume["name"] for volume in pod["volumes"] if volume.get("emptyDir") == {"medium": "Memory"}]
            self.assertIn({"name": memory[0], "mountPath": "/dev/shm"}, container["volumeMounts"])
            command = [word.replace("/run/run.toml", "run.toml") for word in container["command"]]
            pods.append(self.start(command, PET_NNODES="2", PET_NPROC_PER_NODE="1", PET_NODE_RANK=str(number),
                                   PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=port, RANK=str(number), WORLD_SIZE="2",
                                   MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
        for pod in pods:
            self.finish(pod)
        self.assert_same_bits(run)

    def test_variables_of_open_mpi(self):
        run, port = self.dir / "run", str(free_port())
        words = self.words(self.dir, output_path=run)
        ranks = [self.start(["atelier", "train", *words], OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2",
                            OMPI_COMM_WORLD_LOCAL_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_SIZE="2", MASTER_PORT=port)
                 for rank in range(2)]
        for rank in ranks:
            self.finish(rank)
        self.assert_same_bits(run)

    def test_wrong_places_are_refused_before_anything_is_read(self):
        words = self.words(self.dir, output_path=self.dir / "run", model_paths=["/no/such/model"])
        whole = dict(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
        for told, environment in (
            ("rank 2 of 2 processes", dict(whole, RANK="2", MASTER_PORT="29500")),
            ("MASTER_PORT is not set", whole),
            ("WORLD_SIZE is not set", dict(RANK="0", LOCAL_RANK="0")),
            ("atelier launch -- train", dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1", PET_NNODES="2",
                                             PET_NPROC_PER_NODE="8")),
            ("neither RANK nor WORLD_SIZE", dict(PET_NNODES="2", PET_NPROC_PER_NODE="auto")),
            ("MASTER_PORT is not set; MASTER_ADDR is not set", dict(RANK="0", WORLD_SIZE="2", PET_NNODES="2")),
            ("neither SLURM_JOB_NODELIST nor MASTER_ADDR", dict(SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_NTASKS="4",
                                                                SLURM_LOCALID="0", SLURM_STEP_TASKS_PER_NODE="2(x2)")),
        ):
            with self.subTest(told=told):
                self.assertIn(told, self.finish(self.start(["atelier", "train", *words], **environment), code=2))

    def test_machines_that_are_not_told_apart_are_refused(self):
        for told, flags in (("--nnodes 2 needs --node_rank, --master_addr, --master_port", []),
                            ("--nnodes 2 needs --master_addr", ["--node_rank", "1", "--master_port", "29500"]),
                            ("--nnodes 2 needs --node_rank", ["--master_addr", "a", "--master_port", "29500"]),
                            ("--nnodes 2 needs --master_port", ["--node_rank", "1", "--master_addr", "a",
                                                                "--master_port", "0"])):
            with self.subTest(told=told):
                said = self.finish(self.start(["atelier", "launch", "--nproc_per_node", "2", "--nnodes", "2", *flags, "--",
                                               "train"]), code=2)
                self.assertIn(told + ";", said)
                self.assertIn("--node_rank 0, 1, …", said)

    def test_nccl_without_gpus_is_refused(self):
        words = self.words(self.dir, output_path=self.dir / "run")
        said = self.finish(self.start(["atelier", "launch", "--nproc_per_node", "2", "--", "train", *words,
                                       "--dist_backend", "nccl"]), code=2)
        self.assertIn("--dist_backend nccl sends what GPUs hold, and --device is cpu", said)

    def test_a_port_that_is_taken(self):
        words = self.words(self.dir, output_path=self.dir / "run")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            said = self.finish(self.start(["atelier", "launch", "--nproc_per_node", "2", "--master_port",
                                           taken.getsockname()[1], "--", "train", *words]), code=3)
        self.assertIn("another program listens at this port", said)

    def test_a_file_of_accelerate(self):
        run = self.dir / "run"
        flags = dict(output_path=run, lora_base_model=None, lora_target_modules=None, lora_rank=None,
                     trainable_models="dit", dtype=None)
        words = self.words(self.dir, **flags)
        said = self.finish(self.start(["atelier", "launch", "--config_file",
                                       LAUNCHERS / "accelerate_config_zero2offload.yaml", "--nproc_per_node", "2", "--",
                                       "train", *words, "--find_unused_parameters"]))
        self.assertIn("--nproc_per_node 8 -- train --gradient_accumulation_steps 1 --optimize_on_cpu --zero_stage 2 "
                      "--dtype bfloat16", said)
        self.assertIn("offload_param_device: cpu has no effect: below stage 3", said)
        same = self.dir / "same"
        self.finish(self.start(["atelier", "launch", "--nproc_per_node", "2", "--", "train",
                                *self.words(self.dir, **dict(flags, output_path=same)), "--optimize_on_cpu", "--zero_stage", "2",
                                "--dtype", "bfloat16"]))
        self.assertEqual(state_of(run, STEPS), state_of(same, STEPS))

    def test_a_file_of_fsdp_divides_the_model(self):
        file, run = self.dir / "fsdp.yaml", self.dir / "run"
        file.write_text("distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 2\nfsdp_config:\n"
                        "  fsdp_sharding_strategy: FULL_SHARD\n")
        words = self.words(self.dir, output_path=run)
        said = self.finish(self.start(["atelier", "launch", "--config_file", file, "--", "train", *words]))
        self.assertIn("-- train --zero_stage 3 here", said)
        for step, loss in losses(self.reference).items():  # that of one that is not divided
            self.assertAlmostEqual(losses(run)[step], loss, delta=1e-6 * loss)

    def test_a_file_that_would_make_another_run_of_it(self):
        file = self.dir / "accelerate.yaml"
        file.write_text("distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 2\n")
        said = self.finish(self.start(["atelier", "launch", "--config_file", file, "--", "train"]), code=2)
        self.assertIn("mixed_precision: fp16 would make another run of it", said)


if __name__ == "__main__":
    unittest.main()
