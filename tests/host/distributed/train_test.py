"""`atelier launch` on the tiny example model: ranks over Gloo against one process."""

import json
import os
import shutil
import subprocess
import unittest

import program
from rank_runs import FULL, LORA as PLAIN_LORA, RankRuns
from ranks import free_port, launched, place
from tiny_run import losses, on_data, state_of, tensors, validations

LORA = dict(PLAIN_LORA, lora_dropout=0.1)


class DistributedTrainTest(RankRuns):

    def test_two_and_four_ranks_learn_what_one_does(self):
        for kind, flags in (("full", FULL), ("lora", LORA)):
            alone = self.train(1, f"{kind}_1", **flags)
            for ranks in (2, 4):  # with four, and with seven samples an epoch, some have nothing to do
                with self.subTest(kind=kind, ranks=ranks):
                    self.assert_close(alone, self.train(ranks, f"{kind}_{ranks}", **flags))

    def test_losses_stay_the_same_for_twenty_steps(self):
        flags = dict(FULL, max_train_steps=20, save_steps=20, batch_size=2, max_grad_norm=0.01, global_batch_size=8,
                     dataset_repeat=3)  # four batches in most steps
        alone = self.train(1, **flags)
        self.assertEqual(len(losses(alone)), 20)
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.assert_close(alone, self.train(ranks, **flags), step=20)

    def test_rank_0_writes_and_the_batch_is_that_of_all(self):
        run = self.train(2, global_batch_size=None, gradient_accumulation_steps=2, **LORA)
        self.assertIn("global_batch_size = 4", (run / "config.toml").read_text())
        self.assertEqual(self.said.count("trained numbers"), 1)
        self.assertEqual((run / "loss.csv").read_text().count("train/grad_norm"), 10)
        self.assertTrue(tensors(run / "step-10.safetensors"))
        self.assert_close(self.train(1, **LORA), run)

    def test_a_run_goes_on_with_the_same_ranks_to_the_bit(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                whole = self.train(ranks, f"whole_{ranks}", **FULL)
                self.train(ranks, f"cut_{ranks}", max_train_steps=6, save_steps=6, **FULL)
                cut = self.train(ranks, f"cut_{ranks}", global_batch_size=None, max_train_steps=10, resume="latest",
                                 **FULL)
                self.assertEqual(state_of(whole, 10), state_of(cut, 10))
                self.assertEqual(losses(whole), losses(cut))

    def test_a_run_goes_on_with_fewer_and_with_more_ranks(self):
        whole = self.train(4, "whole", **LORA)
        self.train(4, "changing", max_train_steps=4, save_steps=4, **LORA)
        for ranks, steps in ((2, 7), (1, 8), (4, 10)):
            run = self.train(ranks, "changing", global_batch_size=None, max_train_steps=steps, save_steps=steps,
                             resume="latest", **LORA)
            self.assertNotIn("another run", self.said)  # the order of samples is that of the checkpoint
        self.assert_close(whole, run)

    def test_a_cache_is_filled_by_all_ranks(self):
        def files(folder):
            return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        steps = dict(LORA, max_train_steps=1, save_steps=1)
        caches = [self.dir / f"cache_{ranks}" for ranks in (1, 3)]
        for ranks, cache in zip((1, 3), caches):
            self.train(ranks, cache_path=cache, **steps)
        caches.append(self.dir / "cache_ahead")
        line = self.line(2, max_train_steps=None, save_steps=None, enable_csv_log=None, global_batch_size=None,
                         cache_path=caches[-1], **LORA)
        line[line.index("train")] = "cache"
        told, = program.run_line(line, code=0).stdout.splitlines()
        self.assertEqual(json.loads(told)["items"], 7)
        expected, *others = map(files, caches)
        for entries in others:
            self.assertEqual(set(expected), set(entries))
            self.assertEqual([name for name in entries if entries[name] != expected[name]], [])

    def test_validation_is_shared_out(self):
        flags = dict(LORA, validation_dataset_base_path=self.data, max_train_steps=2, save_steps=2,
                     validation_dataset_metadata_path=self.data / "metadata.csv", validation_steps=2)
        self.assert_validations_near(*(validations(self.train(ranks, **flags)) for ranks in (1, 2)))

    def test_sample_images_are_shared_out(self):
        prompts = self.write_prompts("".join(f"number {i} --w 64 --h 64 --s 2 --d {i}\n" for i in range(3)))
        flags = dict(LORA, max_train_steps=2, save_steps=2, global_batch_size=2, max_grad_norm=0, sample_prompts=prompts,
                     sample_every_n_steps=2, sample_at_first=True)
        drawn = []
        for ranks in (1, 2):
            run = self.train(ranks, **flags)
            drawn.append({path.name: path.read_bytes() for path in (run / "samples").iterdir()})
            self.assertEqual(sorted(drawn[-1]), [f"step-{step:08d}_{i}.png" for step in (0, 2) for i in range(3)])
            events, = (run / "tensorboard_log").glob("events.out.tfevents.*")
            shown = events.read_bytes()  # by rank 0, whoever has drawn them
            for name, picture in drawn[-1].items():
                self.assertIn(picture, shown)
                self.assertEqual(self.said.count(name), 1, self.said)
        self.assertEqual(*drawn)

    def test_jobs_of_a_prompts_file_are_shared_out(self):
        jobs = [{"prompt": f"number {i}", "seed": i} for i in range(3)]
        images = []
        for ranks in (1, 2):
            folder = self.dir / f"images_{ranks}"
            folder.mkdir()
            (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
            line = program.command("generate", **self.on_model, height=64, width=64, num_inference_steps=2,
                                   prompts_file="jobs.jsonl")
            told = program.run_line(launched(ranks, line), code=0, cwd=folder).stdout.splitlines()
            self.assertEqual(sorted(json.loads(job)["line"] for job in told), [1, 2, 3])
            images.append({path.name: path.read_bytes() for path in folder.glob("*.png")})
        self.assertEqual(len(images[0]), 3)
        self.assertTrue(images[0] == images[1])

    def test_a_signal_to_any_rank_saves_the_same_step(self):
        said, step = self.stop_by_signal(**LORA)
        self.assertTrue(state_of(self.dir / "run", step), said)
        self.assertIn(f"stopped after step {step}", said)

    def test_a_rank_that_is_killed_ends_the_run(self):
        self.assert_a_killed_rank_ends_the_run(**LORA)

    def test_mistakes_that_all_ranks_make_are_said_once(self):
        self.train(2, expect=2, lora_base_model="dit", lora_target_modules="nothing_like_that")
        self.assertEqual(self.said.count("error: "), 1, self.said)
        self.assertEqual(self.said.count("nothing_like_that"), 1, self.said)

    def test_mistakes_in_flags_are_said_once(self):
        flags = dict(lora_base_model="dit", learning_rate="much", lora_rnk=4)
        for ranks in (1, 3):
            self.train(ranks, expect=2, **flags)
            self.assertEqual(self.said.count("error: "), 1, self.said)
            self.assertEqual(self.said.count('"much" is no number'), 1, self.said)
            self.assertEqual(self.said.count("did you mean --lora_rank?"), 1, self.said)
        self.train(3, expect=2, plugin="qwen_imag")
        self.assertEqual(self.said.count("error: "), 1, self.said)
        self.train(2, max_train_steps=1, save_steps=1, find_unused_parameters=True, **LORA)
        self.assertEqual(self.said.count("--find_unused_parameters has no effect"), 1, self.said)

    def run_ranks(self, script, **flags):
        """Two ranks that a script starts, "$@" being what one of them runs: the exit code and words of each."""
        path = self.dir / "start.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        port = free_port()
        words = self.line(1, **{**LORA, **flags})
        processes = [subprocess.Popen([path, *words], stderr=subprocess.PIPE, text=True, cwd=self.dir,
                                      env={**os.environ, **place(rank, 2, port)}) for rank in range(2)]
        said = [process.communicate(timeout=60)[1] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, said)]

    def test_different_runs_are_refused_before_weights_are_read(self):
        ranks = self.run_ranks('[ "$RANK" = 1 ] && set -- "$@" --seed 43; exec "$@"', cache_path="encoded")
        for rank, (code, said) in enumerate(ranks):  # rank 0 says it
            self.assertEqual(code, 2, said)
            self.assertEqual("--seed: 42, and 43 of rank 1" in said, rank == 0, said)
        self.assertFalse((self.dir / "run/config.toml").exists())

    def test_a_cache_that_each_process_has_to_itself_is_refused(self):
        # Of another name, and of one name that means another folder to each of them.
        for cache_path, code, told in (("encoded", 2, "--cache_path: "), ("/proc/self/cwd/encoded", 3, "does not see in ")):
            ranks = self.run_ranks('mkdir -p of_$RANK && cd of_$RANK && exec "$@"', cache_path=cache_path)
            for rank, (ended, said) in enumerate(ranks):
                self.assertEqual(ended, code, said)
                self.assertEqual(told in said, rank == 0, said)
        self.assertFalse((self.dir / "run/config.toml").exists())

    def test_everything_that_differs_is_in_one_error(self):
        # Each rank has a cache of its own, of other images, and nothing but that.
        flags = dict(task="sft:data_process", max_train_steps=None, save_steps=None, enable_csv_log=None)
        for rank, words in enumerate(("number", "another")):
            data = self.dir / f"data_{rank}"
            shutil.copytree(self.data, data)
            table = data / "metadata.csv"
            table.write_text(table.read_text().replace("number", words))
            self.train(1, global_batch_size=None, cache_path=self.dir / f"of_{rank}/encoded",
                       **{**LORA, **on_data(data), **flags})
        ranks = self.run_ranks('[ "$RANK" = 1 ] && set -- "$@" --seed 43; cd of_$RANK && exec "$@"', task="sft:train",
                               cache_path="/proc/self/cwd/encoded", output_path="/proc/self/cwd/run",
                               dataset_base_path=None, dataset_metadata_path=None)
        for rank, (code, said) in enumerate(ranks):
            self.assertEqual(code, 2, said)
            self.assertEqual(said.count("error: "), 1 - rank, said)
        said = ranks[0][1]
        self.assertIn("--seed: 42, and 43 of rank 1", said)
        self.assertRegex(said, r"\n *cache: [0-9a-f]+, and [0-9a-f]+ of rank 1")
        self.assertEqual(said.count("does not see in "), 2, said)


if __name__ == "__main__":
    unittest.main()
