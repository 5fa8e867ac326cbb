"""Tiny models of all families, and datasets for them, for processes that share rows."""
import json

from families import write_clips, write_models
from tiny_run import FolderTest, write_dataset, write_png


class SequenceRuns(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = write_models(cls.root)
        for name, variant in (("one", "Qwen-Image-Edit"), ("several", "Qwen-Image-Edit-2511")):
            (cls.root / variant).symlink_to(cls.root / "qwen")
            cls.models[name] = dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / variant)]))
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))
        cls.clips = write_clips(cls.root)
        for name, first in (("one", "walk/1.png"), ("several", ["walk/1.png", "walk/5.png"])):
            rows = [{"image": "still.png", "prompt": "a cat", "edit_image": first},
                    {"image": "walk/9.png", "prompt": "a dog", "edit_image": "walk/2.png"}]
            (cls.root / f"{name}.json").write_text(json.dumps(rows))
        for number in range(3):
            write_png(cls.root / f"mask{number}.png", 64, 64,
                      lambda x, y, number=number: (255 * (20 * number <= x < 30 + 10 * number and y > 15), ) * 3)
        rows = [{"image": f"data/{2 * number}.png", "prompt": f"image number {number}",
                 "eligen_entity_prompts": ["a red circle", "the sea", "a cat"][:count],
                 "eligen_entity_masks": [f"mask{mask}.png" for mask in range(count)]} for number, count in enumerate((1, 3))]
        (cls.root / "regions.json").write_text(json.dumps(rows))
        cls.models["regions"] = cls.models["qwen_image"]
