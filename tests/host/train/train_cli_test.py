"""Runs `atelier train` as a user would, on the tiny example model."""

import json
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import program
from tiny_run import (TARGETS, TinyRuns, losses, png_size, state_of, tensors, write_dataset, write_discs,
                      write_png)


class TrainTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.mixed = cls.root / "data", cls.root / "mixed"
        write_dataset(cls.data)
        write_dataset(cls.mixed, sizes=((64, 64), (96, 64)))

    def words(self, out, data=None, command="train", **flags):
        defaults = dict(max_pixels=64 * 96, max_train_steps=4, lora_base_model="dit", lora_target_modules=TARGETS,
                        lora_rank=4, output_path=out)
        return program.command(command, **self.training(out, data or self.data, **{**defaults, **flags}))

    def train(self, name="run", expect=0, **flags):
        out = self.dir / name
        self.stderr = program.run_line(self.words(out, **flags), code=expect).stderr
        return out

    def inspect(self, path, expect=0):
        result = program.run("inspect", "--json", path, code=expect)
        program.run("inspect", path, code=0 if expect == 0 else None)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def generate(self, out, **flags):
        program.run_line(program.command(
            "generate", plugin="qwen_image", model_paths=json.dumps([str(self.model)]), height=64, width=64,
            num_inference_steps=2, seed=1, prompt="an image", quiet=True, no_metadata=True, device="cpu", output=out,
            **flags), code=0)
        return out.read_bytes()

    def test_a_lora_run_leaves_weights_states_metrics_and_its_configuration(self):
        run = self.train(save_steps=2, enable_tensorboard_log=True)
        self.assertEqual(sorted(path.name for path in run.glob("*.safetensors")),
                         ["step-2.safetensors", "step-4.safetensors"])
        self.assertEqual(sorted(path.name for path in (run / "checkpoints").glob("step-*")),
                         ["step-00000002", "step-00000004"])
        self.assertEqual(sorted(losses(run)), [1, 2, 3, 4])
        self.assertTrue(all(0 < loss < 10 for loss in losses(run).values()))
        self.assertTrue(list((run / "tensorboard_log").glob("events.out.tfevents.*")))
        again = self.train("again", config=run / "config.toml", save_steps=2)
        self.assert_same_state(run, again, 4)
        base = self.generate(self.dir / "base.png")
        styled = self.generate(self.dir / "styled.png", lora=run / "step-4.safetensors:4")
        off = self.generate(self.dir / "off.png", lora=run / "step-4.safetensors:0")
        self.assertNotEqual(base, styled)
        self.assertEqual(base, off)

    def test_a_killed_run_goes_on_to_the_bit(self):
        flags = dict(max_train_steps=20, save_steps=5, lora_dropout=0.1, caption_dropout_rate=0.2,
                     ema_decay=0.9, gradient_accumulation_steps=2, lr_scheduler="cosine",
                     lr_warmup_steps=3, dataset_repeat=7)
        straight = self.train("straight", **flags)
        killed = self.dir / "killed"
        process = subprocess.Popen(program.yielding(self.words(killed, **flags)), stderr=subprocess.DEVNULL)
        while not (killed / "checkpoints/step-00000010").is_dir():
            self.assertIsNone(process.poll())
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertFalse((killed / "checkpoints/step-00000020").is_dir())
        program.run("train", "--resume", killed, "--dataset_num_workers", 0, code=0)
        self.assert_same_state(straight, killed, 20)
        self.assertEqual(tensors(straight / "step-20.safetensors"),
                         tensors(killed / "step-20.safetensors"))
        self.assertEqual(losses(straight), losses(killed))

    def test_a_signal_saves_and_leaves(self):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # runs inherit what nohup ignores
        for number, code in ((signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            run = self.dir / number.name
            process = subprocess.Popen(self.words(run, max_train_steps=100_000, save_steps=100_000),
                                       stderr=subprocess.DEVNULL)
            self.addCleanup(process.kill)
            while not (run / "loss.csv").is_file() or len(losses(run)) < 3:
                self.assertIsNone(process.poll())
                time.sleep(0.002)
            process.send_signal(number)
            self.assertEqual(process.wait(120), code)
            saved = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")]
            self.assertEqual(len(saved), 1)
            self.assertGreaterEqual(saved[0], 3)
            self.assertTrue((run / f"step-{saved[0]}.safetensors").is_file())
            last = saved[0] + 2
            program.run("train", "--resume", run, "--max_train_steps", last, "--save_steps", last, code=0)
            straight = self.train(f"straight_{number.name}", max_train_steps=last, save_steps=last)
            self.assert_same_state(straight, run, last)

    def test_two_stages_give_the_bits_of_one(self):
        one = self.train("one", max_train_steps=5, save_steps=5)
        cache = self.dir / "cache"
        self.train("encode", task="sft:data_process", cache_path=cache, lora_base_model=None,
                   lora_target_modules=None)
        two = self.train("two", task="sft:train", cache_path=cache, max_train_steps=5, save_steps=5)
        self.assert_same_state(one, two, 5)
        theirs = self.train("cache_alone", task="sft:train", dataset_base_path=cache, cache_path=None,
                            dataset_metadata_path=None, max_train_steps=5, save_steps=5)
        self.assert_same_state(one, theirs, 5)
        held = dict(validation_dataset_base_path=self.data, validation_steps=5,
                    validation_dataset_metadata_path=self.data / "metadata.csv")
        self.train("encode_held", task="sft:data_process", cache_path=cache, **held)
        watched = self.train("watched", task="sft:train", cache_path=cache, max_train_steps=5,
                             save_steps=5, **held)
        self.assert_same_state(one, watched, 5)
        (cache / "manifest.json").unlink()
        self.train("stale", expect=2, task="sft:train", dataset_base_path=cache, cache_path=None,
                   dataset_metadata_path=None)
        self.assertIn("sft:data_process", self.stderr)

    def test_recomputing_gives_the_bits_of_keeping(self):
        kept = self.train("kept", lora_dropout=0.2, save_steps=4)
        recomputed = self.train("recomputed", lora_dropout=0.2, save_steps=4,
                                use_gradient_checkpointing=True)
        self.assert_same_state(kept, recomputed, 4)
        for budget in ("0", "0.3", "0.7", "1", "full", "40MiB", "1MB", "auto", "none"):
            run = self.train("budget_" + budget, lora_dropout=0.2, save_steps=4,
                             use_gradient_checkpointing=True, activation_memory_budget=budget)
            self.assert_same_state(kept, run, 4)
            self.assertIn("--use_gradient_checkpointing has no effect", self.stderr)
            if budget != "none":
                self.assertIn("activations of blocks: at most", self.stderr)
        for name, more in (("inputs", {}), ("outputs", dict(activation_memory_budget="0.9"))):
            run = self.train("offloaded_" + name, lora_dropout=0.2, save_steps=4,
                             use_gradient_checkpointing_offload=True, **more)
            self.assert_same_state(kept, run, 4)
            self.assertNotIn("has no effect", self.stderr)
        self.train("wrong", expect=2, activation_memory_budget="12")
        self.assertIn("--activation_memory_budget", self.stderr)

    def test_budgets_hold_for_every_shape_and_task(self):
        flags = dict(data=self.mixed, batch_size=2, gradient_accumulation_steps=2, max_train_steps=6,
                     num_epochs=9, save_steps=6, cache_path=None)
        encoder = dict(trainable_models="text_encoder.model.layers.0")
        for name, more in (("dit", {}), ("both", encoder)):
            kept = self.train(name, **flags, **more)
            run = self.train(name + "_budget", **flags, **more, activation_memory_budget="0.5")
            self.assert_same_state(kept, run, 6)

    def test_full_training_saves_a_component_that_takes_the_place_of_its_own(self):
        run = self.train(lora_base_model=None, lora_target_modules=None, trainable_models="dit",
                         save_steps=4, learning_rate=1e-2)
        published = {}
        for path in (self.model / "transformer").glob("*.safetensors"):
            published.update(tensors(path))
        saved = tensors(run / "step-4.safetensors")
        self.assertEqual({name: value[:2] for name, value in saved.items()},
                         {name: value[:2] for name, value in published.items()})
        changed = [name for name, value in saved.items() if published[name][2] != value[2]]
        self.assertGreater(len(changed), len(saved) // 2)
        copy = self.dir / "model"
        shutil.copytree(self.model, copy)
        for path in (copy / "transformer").glob("*.safetensors*"):
            path.unlink()
        shutil.copy(run / "step-4.safetensors",
                    copy / "transformer/diffusion_pytorch_model.safetensors")
        self.model, kept = copy, self.model
        try:
            self.assertTrue(self.generate(self.dir / "tuned.png"))
        finally:
            self.model = kept
        more = self.train("more", lora_base_model=None, lora_target_modules=None,
                          trainable_models="dit", resume_from_checkpoint=run / "step-4.safetensors",
                          learning_rate=1e-30, save_steps=4)
        self.assertEqual(tensors(more / "step-4.safetensors"), saved)
        self.train("part", expect=2, lora_base_model=None, lora_target_modules=None,
                   trainable_models="dit.transformer_blocks.0",
                   resume_from_checkpoint=run / "step-4.safetensors")
        self.assertIn("not trained as a whole", self.stderr)
        wide = self.train("wide", lora_base_model=None, lora_target_modules=None,
                          trainable_models="dit", max_train_steps=1, save_steps=1,
                          save_dtype="float32")
        self.assertEqual({value[0] for value in tensors(wide / "step-1.safetensors").values()},
                         {"F32"})

    def test_bfloat16_weights_move_at_a_small_rate(self):
        flags = dict(lora_base_model=None, lora_target_modules=None, dtype="bfloat16",
                     trainable_models="dit.transformer_blocks.0.attn", learning_rate=1e-5,
                     weight_decay=0, save_steps=4)
        for master in ("fp32", "stochastic"):
            run = self.train(master, master_weights=master, **flags)
            start = self.train(master + "_start", master_weights=master,
                               **{**flags, "learning_rate": 1e-30})
            moved, still = state_of(run, 4), state_of(start, 4)
            changed = [key for key in moved if key[0] == "trained.safetensors" and
                       moved[key] != still[key]]
            self.assertGreater(len(changed), 4, master)
            self.assertTrue(all(moved[key][0] == "BF16" for key in changed))

    def test_a_batch_is_the_mean_of_its_samples(self):
        flags = dict(max_train_steps=3, save_steps=3, learning_rate=1e-30)
        accumulated = self.train("accumulated", gradient_accumulation_steps=6, **flags)
        batched = self.train("batched", batch_size=6, **flags)
        for step, loss in losses(accumulated).items():
            self.assertAlmostEqual(loss, losses(batched)[step], delta=1e-5 * loss)

    def test_a_batch_of_several_shapes_is_one_step(self):
        run = self.train(data=self.mixed, batch_size=6, num_epochs=3, max_train_steps=None)
        self.assertEqual(sorted(losses(run)), [1, 2, 3])
        self.assertEqual(sorted(path.name for path in run.glob("*.safetensors")),
                         ["epoch-0.safetensors", "epoch-1.safetensors", "epoch-2.safetensors"])

    def test_a_trained_text_encoder_is_not_cached(self):
        run = self.train(lora_base_model="text_encoder", lora_target_modules="q_proj,v_proj",
                         cache_path=self.dir / "cache", save_steps=4, lora_format="comfy")
        self.assertFalse(list((self.dir / "cache").glob("text/*")))
        self.assertTrue(list((self.dir / "cache").glob("latents/*")))
        up = [value for name, value in tensors(run / "step-4.safetensors").items()
              if "lora_B" in name]
        self.assertTrue(up and all(any(value[2]) for value in up))

    def test_several_models_are_saved_as_one_file_each(self):
        run = self.train(trainable_models="text_encoder.model.layers.0", max_train_steps=2, save_steps=2)
        self.assertEqual(sorted(path.name for path in run.glob("*.safetensors")),
                         ["step-2.lora.safetensors", "step-2.text_encoder.safetensors"])

    def test_distillation_learns_from_noise_to_picture(self):
        data = self.dir / "distill"
        write_dataset(data, count=2)
        (data / "metadata.csv").write_text(
            "image,prompt,seed,rand_device,num_inference_steps,cfg_scale\n"
            "0.png,one,7,cpu,3,1\n1.png,two,8,cpu,2,1\n")
        run = self.train(data=data, task="direct_distill", max_train_steps=12, save_steps=12,
                         learning_rate=3e-3, dataset_repeat=6, cache_path=None,
                         use_gradient_checkpointing=True)
        values = losses(run)
        self.assertLess(values[12] + values[11], values[1] + values[2])
        cache = self.dir / "encoded"
        self.train("stage_one", data=data, task="direct_distill:data_process", cache_path=cache)
        staged = self.train("stage_two", data=data, task="direct_distill:train", cache_path=cache,
                            max_train_steps=12, save_steps=12, learning_rate=3e-3,
                            dataset_repeat=6)
        self.assert_same_state(run, staged, 12)
        (data / "metadata.csv").write_text("image,prompt,seed\n0.png,one,x\n1.png,two,8\n")
        self.train("wrong", expect=2, data=data, task="direct_distill")
        self.assertIn("seed", self.stderr)
        self.assertIn("num_inference_steps", self.stderr)

    def test_validation_and_samples_change_nothing(self):
        (self.dir / "prompts.txt").write_text("a red image --w 64 --h 64 --s 2 --d 3\n")
        plain = self.train("plain", max_train_steps=4, save_steps=4)
        watched = self.train("watched", max_train_steps=4, save_steps=4,
                             validation_dataset_base_path=self.data,
                             validation_dataset_metadata_path=self.data / "metadata.csv",
                             validation_steps=2, sample_prompts=self.dir / "prompts.txt",
                             sample_every_n_steps=2, sample_at_first=True)
        self.assert_same_state(plain, watched, 4)
        self.assertEqual(len(list((watched / "samples").glob("step-*.png"))), 3)
        rows = (watched / "loss.csv").read_text()
        self.assertEqual(rows.count(",validation/loss,"), 3)

    def test_sample_pictures_have_the_commonest_training_size_and_stand_in_tensorboard(self):
        (self.dir / "prompts.txt").write_text("a red image --s 2\na blue one --s 2 --w 64 --h 32\n")
        write_dataset(self.dir / "wide", count=5, sizes=((96, 64), (64, 64)))
        options = dict(sample_prompts=self.dir / "prompts.txt", sample_every_n_steps=2,
                       max_train_steps=2, cache_path=None, enable_tensorboard_log=True)
        run = self.train(data=self.dir / "wide", **options)
        self.assertEqual(png_size(run / "samples/step-00000002_0.png"), (96, 64))
        self.assertEqual(png_size(run / "samples/step-00000002_1.png"), (64, 32))
        events, = (run / "tensorboard_log").iterdir()
        for picture in (run / "samples").iterdir():
            self.assertIn(picture.read_bytes(), events.read_bytes())
        cached = self.train("cached", data=run, dataset_metadata_path=None, task="sft:train", **options)
        self.assertEqual(png_size(cached / "samples/step-00000002_0.png"), (96, 64))
        sized = self.train("sized", data=self.dir / "wide", height=32, width=32, **options)
        self.assertEqual(png_size(sized / "samples/step-00000002_0.png"), (32, 32))

    def test_inspect_says_what_a_run_left(self):
        (self.dir / "prompts.txt").write_text("a red image --s 2\n")
        run = self.train(max_train_steps=4, save_steps=2, sample_prompts=self.dir / "prompts.txt",
                         sample_every_n_steps=4, cache_path=None)
        things = self.inspect(run)
        self.assertEqual([thing["kind"] for thing in things], ["run", "lora", "lora"])
        self.assertEqual([state["step"] for state in things[0]["states"]], [2, 4])
        self.assertEqual(things[0]["weights"], ["step-2.safetensors", "step-4.safetensors"])
        self.assertEqual(things[0]["previews"], ["samples/step-00000004_0.png"])
        self.assertEqual(things[0]["metrics"]["last_step"], "4")
        self.assertEqual(things[0]["settings"]["plugin"], "qwen_image")
        state = run / "checkpoints/step-00000004"
        kinds = {run / "config.toml": "settings", run / "loss.csv": "metrics", state: "state",
                 run / "cache": "encoded samples"}
        for path, kind in kinds.items():
            self.assertEqual([thing["kind"] for thing in self.inspect(path)], [kind])
        self.assertEqual(float(self.inspect(run / "loss.csv")[0]["last"]["train/loss"]), losses(run)[4])
        self.assertEqual(self.inspect(run / "cache")[0]["samples"], 6)
        (state / "trained.safetensors").unlink()
        self.assertIn("trained.safetensors", self.inspect(state, expect=2)[0]["refused"])
        settings = run / "config.toml"
        settings.write_text("learning_rat = 1\n" + settings.read_text())
        self.assertIn("learning_rat", self.inspect(settings, expect=2)[0]["refused"])

    def test_a_lora_learns_what_pictures_it_has_not_seen_have_in_common(self):
        learn, held = self.dir / "learn", self.dir / "held"
        write_discs(learn, range(16))
        write_discs(held, range(100, 106))
        run = self.train(data=learn, max_train_steps=100, save_steps=100, learning_rate=1e-2,
                         lora_target_modules="", lora_rank=16, batch_size=2, cache_path=None,
                         validation_dataset_base_path=held, validation_steps=100,
                         validation_dataset_metadata_path=held / "metadata.csv")
        values = [float(line.split(",")[2]) for line in (run / "loss.csv").read_text().splitlines()
                  if ",validation/loss," in line]
        self.assertEqual(len(values), 2)
        self.assertLessEqual(values[1], 0.5 * values[0])

    def test_steps_that_are_not_finite_change_nothing_and_end_the_run(self):
        run = self.train(expect=5, learning_rate=1e30, max_train_steps=40, save_steps=1,
                         max_skipped_steps=3, optimizer_type="AdamW", max_grad_norm=0)
        self.assertIn("not finite", self.stderr)
        self.assertIn("3 steps in a row", self.stderr)
        self.assertTrue(list((run / "checkpoints").glob("step-*")))

    def test_a_differential_lora_learns_beside_a_frozen_one(self):
        first = self.train("first", learning_rate=1e-2, save_steps=4)
        preset = dict(preset_lora_path=first / "step-4.safetensors", preset_lora_model="dit")
        second = self.train("second", save_steps=4, **preset)
        self.assertNotEqual(losses(second)[1], losses(first)[1])
        names = tensors(second / "step-4.safetensors").keys()
        self.assertEqual(names, tensors(first / "step-4.safetensors").keys())
        for changes in ({}, {"trainable_models": "text_encoder"}):
            self.train("wrong", expect=2, **{**preset, "preset_lora_model": "text_encoder"},
                       **changes)
            self.assertIn("--preset_lora_model", self.stderr)

    def test_masked_samples_count_where_the_mask_is_white(self):
        data = self.dir / "masked"
        shutil.copytree(self.data, data)
        write_png(data / "white.png", 64, 64, lambda x, y: (255, 255, 255))
        write_png(data / "half.png", 64, 64, lambda x, y: (255, 255, 255) if x < 32 else (0, 0, 0))
        found = {}
        for mask in ("white", "half"):
            (data / "metadata.csv").write_text(f"image,prompt,mask\n0.png,an image,{mask}.png\n")
            run = self.train(mask, data=data, max_train_steps=1, cache_path=None)
            found[mask] = losses(run)[1]
        (data / "metadata.csv").write_text("image,prompt\n0.png,an image\n")
        plain = losses(self.train("plain", data=data, max_train_steps=1, cache_path=None))[1]
        self.assertAlmostEqual(found["white"], plain, delta=1e-6 * plain)
        self.assertTrue(0.1 * plain < found["half"] < 0.9 * plain)

    def test_optimizers_learn_and_resume(self):
        for name in ("AdamW8bit", "Adafactor", "Prodigy"):
            rate = 1.0 if name == "Prodigy" else 1e-3
            flags = dict(optimizer_type=name, learning_rate=rate, max_train_steps=6)
            straight = self.train(name + "_straight", save_steps=6, **flags)
            self.train(name, save_steps=3, **{**flags, "max_train_steps": 3})
            resumed = self.train(name, resume=self.dir / name, save_steps=6, **flags)
            self.assert_same_state(straight, resumed, 6)

    def test_every_mistake_is_told_before_a_model_is_read(self):
        data = self.dir / "data"
        shutil.copytree(self.data, data)
        (data / "3.png").unlink()
        (data / "4.png").write_bytes(b"no image")
        self.train(expect=2, data=data, lora_target_modules="to_q,to_x", lora_rank=0,
                   learning_rat=1, num_epochs=0)
        for part in ("3.png", "4.png", "to_x", "--lora_rank", "learning_rat", "--num_epochs"):
            self.assertIn(part, self.stderr)
        self.assertFalse((self.dir / "run").exists())

    def test_epochs_of_billions_of_samples_begin_and_go_on(self):
        """Six rows, so often that an epoch is near the most samples that one can have."""
        whole = self.train("whole", dataset_repeat=700_000_000, max_train_steps=4)
        self.train("parts", dataset_repeat=700_000_000, max_train_steps=2)
        parts = self.train("parts", dataset_repeat=700_000_000, max_train_steps=4,
                           resume=self.dir / "parts")
        self.assert_same_state(whole, parts, 4)
        self.train("more", expect=2, dataset_repeat=1_000_000_000)
        self.assertIn("--dataset_repeat: 1000000000 times 6 items are too many", self.stderr)
        self.assertNotIn("load ", self.stderr)
        self.assertFalse((self.dir / "more").exists())

    def test_a_signal_while_pictures_are_made_saves_too(self):
        (self.dir / "prompts.txt").write_text("an image --w 256 --h 256 --s 400 --d 1\n")
        run = self.dir / "run"
        process = subprocess.Popen(self.words(run, max_train_steps=50, sample_every_n_steps=2,
                                              sample_prompts=self.dir / "prompts.txt"),
                                   stderr=subprocess.DEVNULL)
        while not (run / "loss.csv").is_file() or len(losses(run)) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(120), 75)
        self.assertTrue((run / "checkpoints/step-00000002").is_dir())

    def test_pictures_that_cannot_be_written_change_nothing(self):
        (self.dir / "prompts.txt").write_text("an image --w 64 --h 64 --s 2 --d 1\n")
        flags = dict(lora_dropout=0.3, save_steps=4)
        plain = self.train("plain", **flags)
        (self.dir / "shown").mkdir()
        (self.dir / "shown/samples").write_text("in the way")
        shown = self.train("shown", sample_prompts=self.dir / "prompts.txt", sample_every_n_steps=1,
                           **flags)
        self.assertIn("no sample images", self.stderr)
        self.assert_same_state(plain, shown, 4)

    def test_the_newest_weights_stay(self):
        run = self.train(max_train_steps=None, num_epochs=3, weights_total_limit=2)
        self.assertEqual(sorted(path.name for path in run.glob("*.safetensors")),
                         ["epoch-1.safetensors", "epoch-2.safetensors"])

    def test_a_lora_begins_with_a_file_that_fits(self):
        first = self.train("first", save_steps=4)
        file = first / "step-4.safetensors"
        second = self.train("second", lora_checkpoint=file, learning_rate=1e-30, save_steps=4)
        self.assertEqual(tensors(file), tensors(second / "step-4.safetensors"))
        self.train("rank", expect=2, lora_checkpoint=file, lora_rank=8)
        self.assertIn("--lora_rank 4", self.stderr)
        self.assertNotIn("load dit", self.stderr)

    def test_a_run_does_not_go_on_with_other_weights(self):
        run = self.train(max_train_steps=2, save_steps=2)
        other = self.dir / "other"
        program.write_tiny_model(other, seed=5)
        self.train(expect=2, resume=run, model_paths=json.dumps([str(other)]))
        self.assertIn("other weights", self.stderr)
        self.train(resume=run, batch_size=2)
        self.assertIn("batch size", self.stderr)

    def test_settings_that_cannot_work_are_refused(self):
        for part, flags in (("--lora_target_modules", dict(lora_base_model="vae",
                                                           lora_target_modules="")),
                            ("--lora_rank", dict(lora_rank=5000)),
                            ("float16", dict(dtype="float16"))):
            self.train(expect=2, **flags)
            self.assertIn(part, self.stderr)

    def test_a_run_is_not_written_over(self):
        self.train(max_train_steps=1, save_steps=1)
        self.train(expect=2, max_train_steps=1)
        self.assertIn("--resume", self.stderr)
        self.assertIn('"checkpoints", "step-1.safetensors", "config.toml"', self.stderr)
        weights = self.train("stateless", max_train_steps=1, save_state="false")
        before = (weights / "step-1.safetensors").read_bytes()
        for resume in (None, "latest"):
            self.train("stateless", expect=2, max_train_steps=1, save_state="false", resume=resume, seed=5)
            self.assertEqual(len(self.stderr.strip().splitlines()), 1 if resume is None else 2, self.stderr)
            self.assertIn('"step-1.safetensors"', self.stderr)
        self.assertEqual((weights / "step-1.safetensors").read_bytes(), before)
        for name, file in (("foreign", "config.toml"), ("model", "model_index.json"), ("shown", "samples/a.png"),
                           ("rows", "loss.csv"), ("logged", "tensorboard_log/events")):
            (self.dir / name / file).parent.mkdir(parents=True)
            (self.dir / name / file).write_text("of somebody")
            self.train(name, expect=2, max_train_steps=1)
            self.assertIn(f'holds files of another run or of a model: "{file.split("/")[0]}"', self.stderr)
            self.assertEqual((self.dir / name / file).read_text(), "of somebody")
        (self.dir / "file").write_text("")
        self.train("file", expect=2, max_train_steps=1)
        self.assertIn("is no folder", self.stderr)
        self.train("a" * 5000, expect=2, max_train_steps=1)
        self.assertIn("File name too long", self.stderr)

    def forget_saves(self, run):
        """Leaves of a run what a kill within its first save leaves."""
        shutil.rmtree(run / "checkpoints")
        for path in run.glob("*.safetensors"):
            path.unlink()
        unfinished = run / "checkpoints/.atelier-tmp-0123abcd-step-00000002"
        unfinished.mkdir(parents=True)
        (unfinished / "trained.safetensors").write_bytes(b"half")
        (run / ".atelier-tmp-0123abcd-config.toml").write_bytes(b"half")

    def test_a_run_that_was_killed_in_its_first_save_begins_again(self):
        flags = dict(max_train_steps=2, save_steps=2)
        run = self.train(**flags)
        expected, rows = state_of(run, 2), (run / "loss.csv").read_text().count(",train/loss,")
        for how in (dict(flags), dict(flags, resume="latest"), dict(flags, resume="latest", seed=3)):
            self.forget_saves(run)
            self.train(**how)
            self.assertEqual(list(run.rglob(".atelier-tmp-*")), [])
            self.assertEqual(state_of(run, 2) == expected, "seed" not in how)
            self.assertEqual((run / "loss.csv").read_text().count(",train/loss,"), rows)
        self.forget_saves(run)
        result = program.run("train", "--resume", run, "--seed", 42, code=0)
        self.assertIn("training begins from the beginning", result.stderr)
        self.assertEqual(state_of(run, 2), expected)
        self.forget_saves(run)
        self.train(expect=2, **flags, learning_rate=2e-3)
        self.assertIn('"config.toml"', self.stderr)

    def test_what_a_resumed_run_cannot_change_is_told_in_one_line_before_loading(self):
        run = self.train(max_train_steps=1, save_steps=1)
        for flag, ours, theirs in (("lora_rank", "8", "4"), ("lora_target_modules", "to_q,to_k", "to_q,to_k,to_v"),
                                   ("optimizer_type", "Prodigy", "AdamW"), ("ema_decay", "0.9", "0")):
            result = program.run("train", "--resume", run, "--max_train_steps", 3, f"--{flag}", ours, code=2)
            self.assertIn(f'--{flag}: "{ours}", and the run that is resumed has "{theirs}"', result.stderr)
            told = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
            self.assertEqual(len(told), 1, result.stderr)
        self.train("rank", expect=2, lora_checkpoint=run / "step-1.safetensors", lora_rank=8)
        self.assertEqual(len(self.stderr.strip().splitlines()), 1, self.stderr)
        self.assertIn("rank 4, and --lora_rank is 8", self.stderr)

    def test_a_finished_run_says_so_and_what_goes_on(self):
        run = self.train(max_train_steps=2, save_steps=2, kernels="norm_rope,swiglu")
        saved = (run / "step-2.safetensors").read_bytes()
        self.train(resume=run, max_train_steps=2, quiet=True)
        self.assertIn("the run is finished: step 2 of 2; to go on, give a larger --max_train_steps than 2",
                      self.stderr)
        self.assertNotIn("load dit", self.stderr)
        # Weights that a kill kept from being written, after their state was.
        (run / "step-2.safetensors").unlink()
        self.train(resume=run, max_train_steps=2)
        self.assertEqual(tensors(run / "step-2.safetensors"), self.tensors_of(saved))
        self.assertIn('kernels = "norm_rope,swiglu"\n', (run / "config.toml").read_text())  # as the run had them
        epochs = self.train("epochs", max_train_steps=None)
        result = program.run("train", "--resume", epochs, code=0)
        self.assertIn("step 6 of 6; to go on, give a larger --num_epochs than 1", result.stderr)

    def tensors_of(self, data):
        (self.dir / "copy.safetensors").write_bytes(data)
        return tensors(self.dir / "copy.safetensors")

    def test_a_run_is_resumed_from_any_folder(self):
        (self.dir / "models/tiny").mkdir(parents=True)
        (self.dir / "models/tiny/image").symlink_to(self.model)
        (self.dir / "data").symlink_to(self.data)
        (self.dir / "prompts.txt").write_text("a red image --w 64 --h 64 --s 2 --d 3\n")
        ids = ",".join(f"tiny/image:{part}/*.safetensors" for part in ("transformer", "text_encoder", "vae"))
        for name, model in (("path", dict(model_paths='["models/tiny/image"]')),
                            ("id", dict(model_paths=None, model_id_with_origin_paths=ids,
                                        tokenizer_path="models/tiny/image/tokenizer"))):
            words = self.words(name, data=pathlib.Path("data"), sample_prompts="prompts.txt", cache_path=None,
                               sample_every_n_steps=4, max_train_steps=2, save_steps=2, **model)
            program.run_line(words, code=0, cwd=self.dir)
            moved = self.dir / "elsewhere" / name
            moved.parent.mkdir(exist_ok=True)
            (self.dir / name).rename(moved)
            result = program.run("train", "--resume", moved, "--max_train_steps", 4, code=0, cwd="/")
            self.assertTrue((moved / "step-4.safetensors").is_file())
            self.assertFalse((self.dir / name).exists())
            self.assertNotIn("encode texts", result.stderr)  # the cache moved along

    def test_weights_leave_room_for_the_state_on_a_full_disk(self):
        disk = self.dir / "disk"
        disk.mkdir()
        namespace = ["unshare", "-rm", "sh", "-c"]
        mount = 'mount -t tmpfs -o size=64m tmpfs "$0" && '
        if program.run_line([*namespace, mount + "true", disk]).returncode != 0:
            self.skipTest("a small disk cannot be mounted here")
        # The whole denoiser: 2.5 MiB of weights, 17 MiB of state.
        words = self.words(disk / "run", lora_base_model=None, lora_target_modules=None, lora_rank=None,
                           trainable_models="dit", max_train_steps=9, save_steps=1, num_epochs=2)
        result = program.run_line([*namespace, mount + '"$@"; code=$?; find "$0" | sort; exit $code', disk, *words],
                                  code=0)
        left = [line.removeprefix(f"{disk}/run/") for line in result.stdout.splitlines()]
        self.assertIn("checkpoints/step-00000008/MANIFEST.json", left)
        self.assertIn("checkpoints/step-00000009/MANIFEST.json", left)
        self.assertIn("step-9.safetensors", left)
        self.assertNotIn("step-7.safetensors", left)
        self.assertFalse([name for name in left if "atelier-tmp" in name])
        self.assertIn("not saved: ", result.stderr)
        self.assertIn("saving the weights step-7 and leaving room for the next checkpoint needs", result.stderr)
        self.assertIn("see --weights_total_limit", result.stderr)
        self.assertNotIn("a checkpoint needs", result.stderr)


if __name__ == "__main__":
    unittest.main()
