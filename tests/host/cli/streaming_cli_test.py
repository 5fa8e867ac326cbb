"""Models whose blocks rest on the host or in their files, as a user runs them: the same bits, less of the device."""

import json
import math
import re
import struct
import unittest

import program
from tiny_run import TARGETS, TinyRuns, factors, matrices, pixels, tensors, write_dataset, write_tensors

BLOCKS = 4
ALL_ON_HOST = "dit=host,text_encoder=host,vae=host"
ALL_IN_FILES = "dit=disk,text_encoder=disk,vae=disk"


def write_loras(model, folder):
    """Two LoRAs of the denoiser, and one whose additions are no products."""
    folder.mkdir()
    shapes = {name: shape for name, shape in matrices(model).items() if name.startswith("transformer_blocks.")}
    assert len(shapes) >= 14 * BLOCKS, shapes
    style, light, whole = {}, {}, {}
    for number, (name, shape) in enumerate(shapes.items()):
        style.update(factors("transformer." + name, shape, seed=number))
        light.update(factors("transformer." + name, shape, rank=1, seed=number + 0.5))
        count = shape[0] * shape[1]
        whole[f"diffusion_model.{name}.diff"] = (shape, [0.01 * ((i * 7 + number) % 11 - 5) for i in range(count)])
    for name, values in (("style", style), ("light", light), ("whole", whole)):
        write_tensors(folder / f"{name}.safetensors", values)


class StreamingTest(TinyRuns):
    denoiser_blocks = BLOCKS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loras, cls.data = cls.root / "loras", cls.root / "data"
        write_loras(cls.model, cls.loras)
        write_dataset(cls.data, count=3)
        cls.plain = {}

    def run_program(self, command, expect=0, stdin="", **flags):
        defaults = dict(self.on_model)
        if command == "probe":
            del defaults["threads"]
        if command in ("generate", "train"):
            defaults["vram"] = "off"  # places are said by hand
        line = program.command(command, **{**defaults, **flags})
        return program.run_line(line, code=expect, cwd=self.dir, stdin=stdin).stderr

    def picture(self, **flags):
        """Compressed pixels, and what was said."""
        flags = dict(dict(prompt="a cat", height=64, width=64, num_inference_steps=3, cfg_scale=3, seed=3), **flags)
        out = self.dir / "image.png"
        said = self.run_program("generate", output=out, no_metadata=True, **flags)
        return pixels(out), said

    def resident(self, **flags):
        key = json.dumps(flags, sort_keys=True, default=str)
        if key not in self.plain:
            self.plain[key] = self.picture(**flags)[0]
        return self.plain[key]

    def test_a_picture_has_the_same_bits_wherever_blocks_rest(self):
        places = [dict(offload=f"dit={place}", resident_blocks=count, prefetch=prefetch)
                  for place in ("host", "disk")
                  for count, prefetch in ((0, 0), (0, 1), (BLOCKS // 2, 1), (BLOCKS, 2))]
        places += [dict(offload=ALL_ON_HOST), dict(offload=ALL_IN_FILES, prefetch=1),
                   dict(offload=ALL_ON_HOST, resident_blocks="text_encoder=1,vae=5", prefetch=1,
                        device="simulated:64MiB:500MB/s")]
        for place in places:
            with self.subTest(**place):
                picture, said = self.picture(**place)
                self.assertEqual(picture, self.resident())
                stays = str(place.get("resident_blocks", 0))
                if stays.isdigit() and int(stays) < BLOCKS:
                    self.assertIn(f"dit: {stays} of {BLOCKS} blocks stayed on the device", said)

    def test_the_other_ways_through_a_model_stream_too(self):
        for flags in (dict(cfg_batch="off"), dict(cfg_scale=1), dict(tiled=True, tile_size=64, tile_stride=48,
                                                                     height=96, width=96)):
            with self.subTest(**flags):
                self.assertEqual(self.picture(offload=ALL_ON_HOST, prefetch=1, **flags)[0], self.resident(**flags))
        self.picture()
        image = self.root / "image.png"
        (self.dir / "image.png").rename(image)
        flags = dict(input_image=image, denoising_strength=0.7)
        self.assertEqual(self.picture(offload=ALL_IN_FILES, **flags)[0], self.resident(**flags))

    def test_stored_weights_stream_as_they_are_stored(self):
        for storage in ("dit=fp8", "dit=int8,text_encoder=fp8"):
            stored = self.resident(storage=storage)
            self.assertNotEqual(stored, self.resident())
            for count in (0, BLOCKS // 2):
                picture, _ = self.picture(storage=storage, offload="dit=host,text_encoder=host",
                                          resident_blocks=count, prefetch=1)
                self.assertEqual(picture, stored)
            self.assertEqual(self.picture(storage=storage, lora=self.loras / "style.safetensors",
                                          offload="dit=host", prefetch=1)[0],
                             self.resident(storage=storage, lora=self.loras / "style.safetensors"))

    def jobs(self, **flags):
        """Images of jobs that switch LoRAs between them."""
        sets = [[], [("style", 1)], [("light", 0.5)], [("style", 0.7), ("light", 1)], [("whole", 1)], [],
                [("style", 1)]]
        out = self.dir / "jobs"
        out.mkdir(exist_ok=True)
        lines = [json.dumps({"prompt": "a cat" if i % 2 else "a dog", "output": str(out / f"{i}.png"),
                             "loras": [{"name": name, "strength": strength} for name, strength in loras]})
                 for i, loras in enumerate(sets)]
        self.run_program("generate", prompts_file="-", stdin="\n".join(lines), lora_dir=self.loras, height=64,
                         width=64, num_inference_steps=2, seed=5, no_metadata=True, **flags)
        return [pixels(out / f"{i}.png") for i in range(len(sets))]

    def test_loras_come_and_go_hot_on_weights_that_stream(self):
        for mode in ("hot", "merge"):
            resident = self.jobs(lora_mode=mode)
            self.assertEqual(len(set(resident)), 7, "every LoRA changes its image")
            for flags in (dict(offload="dit=host", resident_blocks=1, prefetch=1),
                          dict(offload="dit=disk,text_encoder=host,vae=host", prefetch=1)):
                self.assertEqual(self.jobs(lora_mode=mode, **flags), resident)
        self.assertEqual(self.jobs(storage="dit=int8", offload="dit=host", prefetch=1), self.jobs(storage="dit=int8"))

    def peak(self, said):
        size, unit = re.search(r"simulated device: at most ([\d.]+) ([KM])iB", said).groups()
        return float(size) * (1024 if unit == "M" else 1)

    def test_a_model_that_does_not_fit_runs_streamed(self):
        flags = dict(offload=ALL_ON_HOST, prefetch=1)
        resident = self.peak(self.picture(device="simulated:1GiB")[1])
        streamed = self.peak(self.picture(device="simulated:1GiB", **flags)[1])
        print(f"peak: resident {resident:.0f} KiB, streamed {streamed:.0f} KiB")
        self.assertLess(streamed, 0.6 * resident)
        small = f"simulated:{round((resident + 3 * streamed) / 4)}KiB:2GB/s"
        picture, said = self.picture(device=small, **flags)
        self.assertEqual(picture, self.resident())
        out = self.dir / "none.png"
        said = self.run_program("generate", expect=4, device=small, vram="off", prompt="a cat", height=64, width=64,
                                num_inference_steps=3, cfg_scale=3, seed=3, output=out)
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, said)
        self.assertRegex(errors[0], r"^error: loading \w+: .*--offload \w+=host \[OUT_OF_MEMORY\]$")
        self.assertFalse(out.exists())

    def test_wrong_places_are_told_before_weights_are_read(self):
        def refused(*words, **flags):
            said = self.run_program("generate", expect=2, prompt="a cat", output=self.dir / "none.png", **flags)
            self.assertNotRegex(said, "(?m)^load ")
            for word in words:
                self.assertIn(word, said)

        refused("3 mistakes", "did you mean dit?", "tokenizer", "no blocks",
                "text_encoder stays on the device whole",
                offload="ditt=host,tokenizer=disk", resident_blocks="text_encoder=3")
        refused("2 mistakes", "dit has 4 blocks, and 5 are to stay", "--prefetch: -1",
                offload="dit=host", resident_blocks=5, prefetch=-1)
        refused("dit is named twice", offload="dit=host", resident_blocks="1,dit=2")
        refused("use host or disk", offload="dit=cloud")
        refused("the component is named twice", offload="dit=host,dit=disk")
        refused("no number of blocks", offload="dit=host", resident_blocks="many")
        for device in ("simulated:lots", "simulated:1GiB:5", "simulate"):
            refused(f'{device}', "not known", device=device)

    def test_what_saves_nothing_is_said(self):
        saves_nothing = "saves nothing on the CPU"
        moved = f"--offload dit=disk: {BLOCKS} of {BLOCKS} blocks rest in host memory"
        self.assertIn(saves_nothing, self.picture(offload="dit=host")[1])
        for device in ("cpu", "simulated"):
            said = self.picture(offload="dit=disk", device=device)[1]
            self.assertEqual([line for line in said.splitlines()
                              if line.startswith("note: ") and not line.startswith("note: replaces ")], [])
            self.assertIn(moved, self.picture(offload="dit=disk", storage="dit=fp8", device=device)[1])
            self.assertIn(moved, self.picture(offload="dit=disk", dtype="float32", device=device)[1])

    def test_blocks_in_files_need_little_of_the_host(self):
        def held(offload):
            said = self.picture(offload=offload, prefetch=0)[1]
            size, unit = re.search(r"dit: .* the host held ([\d.]+) ([KM])iB", said).groups()
            return float(size) * (1024 if unit == "M" else 1)

        self.assertLess(held("dit=disk"), 0.5 * held("dit=host"))

    def train(self, name, **flags):
        out = self.dir / name
        self.said = self.run_program(
            "train", **{**dict(dataset_base_path=self.data, dataset_metadata_path=self.data / "metadata.csv",
                               max_pixels=64 * 64, learning_rate=1e-3, max_train_steps=4, lora_base_model="dit",
                               lora_target_modules=TARGETS, lora_rank=4, lora_dropout=0.1, output_path=out), **flags})
        return {path.name: tensors(path) for path in sorted(out.glob("*.safetensors"))}

    def test_a_lora_trains_to_the_same_bits_wherever_blocks_rest(self):
        resident = self.train("resident")
        self.assertTrue(resident)
        places = [dict(offload="dit=host", prefetch=1), dict(offload="dit=disk", resident_blocks=1, prefetch=0),
                  dict(offload=ALL_ON_HOST, prefetch=1, device="simulated:64MiB"),
                  dict(offload="dit=host", prefetch=1, use_gradient_checkpointing=True)]
        places += [dict(offload="dit=disk", prefetch=1, activation_memory_budget=budget)
                   for budget in ("none", "full", "0.5", "1", "auto")]
        for number, place in enumerate(places):
            with self.subTest(**place):
                self.assertEqual(self.train(f"streamed{number}", **place), resident)
                self.assertIn(f"of {BLOCKS} blocks stayed on the device", self.said)

    def test_a_lora_trains_on_stored_weights_that_stream_and_shows_pictures(self):
        prompts = self.dir / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": "a cat", "height": 64, "width": 64, "num_inference_steps": 2}))
        flags = dict(storage="dit=fp8", sample_prompts=prompts, sample_every_n_steps=2, sample_at_first=True)
        pictures = []
        for name, place in (("resident", {}), ("streamed", dict(offload=ALL_ON_HOST, prefetch=1))):
            pictures.append([self.train(name, **flags, **place),
                             *[pixels(path) for path in sorted((self.dir / name / "samples").glob("*.png"))]])
        self.assertGreater(len(pictures[0]), 3)
        self.assertEqual(pictures[0], pictures[1])

    def test_a_text_encoder_that_streams_can_be_trained(self):
        flags = dict(lora_base_model="text_encoder", lora_target_modules="q_proj,v_proj", prefetch=1)
        self.assertEqual(self.train("streamed", offload="text_encoder=host,dit=disk", **flags),
                         self.train("resident", **flags))

    def test_encodings_are_the_same_from_encoders_that_stream(self):
        caches = []
        for name, offload in (("resident", ""), ("streamed", "text_encoder=disk,vae=host")):
            self.run_program("cache", dataset_base_path=self.data, dataset_metadata_path=self.data / "metadata.csv",
                             max_pixels=64 * 64, cache_path=self.dir / name, output_path=self.dir / "out",
                             offload=offload)
            caches.append({path.relative_to(self.dir / name): tensors(path)
                           for path in sorted((self.dir / name).rglob("*.safetensors"))})
        self.assertTrue(caches[0])
        self.assertEqual(caches[0], caches[1])

    def test_a_probe_has_the_same_values_and_gradients(self):
        def waves(*shape):
            count = math.prod(shape)
            return list(shape), [math.sin(0.37 * i) for i in range(count)]

        write_tensors(self.dir / "in.safetensors", {"latents": waves(1, 16, 1, 4, 4), "sigma": ([1], [0.7]),
                                                    "prompt_embeds": waves(1, 5, 64)})
        outputs = []
        for name, offload in (("resident", ""), ("streamed", "dit=host")):
            self.run_program("probe", component="dit", inputs=self.dir / "in.safetensors", gradients=True,
                             output=self.dir / f"{name}.safetensors", offload=offload, prefetch=0)
            outputs.append(tensors(self.dir / f"{name}.safetensors"))
        self.assertIn("grad.latents", outputs[0])
        # Every block adds to the level's gradient; the sum is made in another order.
        one, other = (struct.unpack("<f", output.pop("grad.sigma")[2])[0] for output in outputs)
        self.assertAlmostEqual(one / other, 1, delta=1e-5)
        self.assertEqual(outputs[0], outputs[1])
        said = self.run_program("probe", expect=2, component="dit", inputs=self.dir / "in.safetensors", gradients=True,
                                trainable="*", output=self.dir / "none.safetensors", offload="dit=host")
        self.assertIn("leave out --offload", said)


if __name__ == "__main__":
    unittest.main()
