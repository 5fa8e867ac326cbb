"""What a run with pictures does around the model: previews show what `generate` makes of the same
pictures, and a plan counts them."""

import json
import re
import sys
import unittest

import numpy as np
from PIL import Image

import atelier
import edit_models
import tiny_models
from tiny_run import FolderTest

ROOM = "8GiB"
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PROMPT = "Turn the cat of picture 1 blue"


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


class EditRunsTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        models = edit_models.EditModels(cls.root, tiny_models.get().model)
        cls.model = models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        cls.pictures = [cls.root / f"picture {number}.png" for number in range(3)]
        for number, path in enumerate(cls.pictures):
            edit_models.smooth_picture(200, 300, number).save(path)

    def run_program(self, command, **flags):
        flags = dict(plugin="qwen_image", model_paths=atelier.paths_argument(self.model), dtype="float32",
                     threads=1) | flags
        words = [str(word) for name, value in flags.items() for one in (value if isinstance(value, list) else [value])
                 for word in ("--" + name, one)]
        return atelier.run_line([str(atelier.program()), *command.split(), *words], code=0,
                                timeout=atelier.TIMEOUT_S).stderr

    def dataset(self, counts):
        """A row for each count of pictures, the same in size."""
        rows = [{"image": str(self.pictures[0]), "prompt": PROMPT,
                 "edit_image": [str(path) for path in self.pictures[:count]]} for count in counts]
        path = self.root / ("_".join(map(str, counts)) + ".json")
        path.write_text(json.dumps(rows))
        return dict(dataset_base_path=self.root, dataset_metadata_path=path, data_file_keys="image,edit_image",
                    extra_inputs="edit_image", edit_image_auto_resize="false", height=64, width=64)

    def training(self, name, **flags):
        return dict(lora_base_model="dit", lora_target_modules="to_q", lora_rank=4,
                    activation_memory_budget="0", save_state="false", output_path=self.root / name,
                    **{"max_train_steps": 1, **flags})

    def test_previews_show_what_is_made_of_the_same_pictures(self):
        prompts = self.root / "prompts.txt"
        prompts.write_text(f"{PROMPT} --ci {self.pictures[0]} --ci {self.pictures[1]} --w 64 --h 96 --d 5 --s 2 --l 1\n"
                           f"{PROMPT} --ci {self.pictures[2]} --w 64 --h 96 --d 5 --s 2 --l 1\n")
        self.run_program("train", **self.training("previews", **self.dataset([1])), sample_prompts=prompts,
                         sample_at_first="true", sample_every_n_steps=10)
        for number, pictures in enumerate((self.pictures[:2], self.pictures[2:])):
            made = self.root / f"made_{number}.png"
            self.run_program("generate", prompt=PROMPT, edit_image=pictures, width=64, height=96, seed=5,
                             num_inference_steps=2, cfg_scale=1, edit_image_auto_resize="false", output=made)
            shown, = (self.root / "previews/samples").glob(f"step-00000000_{number}.png")
            self.assertTrue(np.array_equal(np.asarray(Image.open(shown)), np.asarray(Image.open(made))))

    def check_peak(self, said):
        planned, measured = map(bytes_of, re.search(r"memory: predicted (\S+ \S+), measured (\S+ \S+)", said).groups())
        self.assertLess(abs(planned / measured - 1), 0.1, said[-500:])
        return planned

    def limited(self, command, **flags):
        return self.check_peak(self.run_program(command, device="simulated:" + ROOM, vram=ROOM, **flags))

    def test_a_plan_of_an_image_counts_pictures(self):
        peaks = [
            self.limited("generate", prompt=PROMPT, edit_image=self.pictures[:count], width=64, height=64, seed=5,
                         num_inference_steps=1, cfg_scale=4, edit_image_auto_resize="false",
                         output=self.root / "planned.png") for count in (1, 2, 3)
        ]
        self.assertLess(peaks[0], peaks[1])
        self.assertLess(peaks[1], peaks[2])

    def test_a_plan_of_a_training_counts_pictures_of_rows_and_of_a_cache(self):
        peaks = []
        for counts in ([1], [2, 1]):
            name = "_".join(map(str, counts))
            dataset, cache = self.dataset(counts), self.root / f"cache_{name}"
            self.limited("train", **self.training(f"rows_{name}", **dataset), cache_path=cache)
            cached = dict(task="sft:train", dataset_base_path=cache, max_train_steps=len(counts))
            peaks.append(self.limited("train", **self.training(f"cached_{name}", **cached)))
        self.assertGreater(peaks[1], 1.3 * peaks[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
