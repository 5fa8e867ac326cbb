"""Tiny models of all families, and datasets for them, for processes that share rows."""
import json
import pathlib
import tempfile
import unittest

import wan_training_test as wan
from families import write_models
from train_cli_test import write_dataset


class SequenceRuns(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_sequence_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        cls.models = write_models(cls.root)
        for name, variant in (("one", "Qwen-Image-Edit"), ("several", "Qwen-Image-Edit-2511")):
            (cls.root / variant).symlink_to(cls.root / "qwen")
            cls.models[name] = dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / variant)]))
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))
        wan.write_walk(cls.root / "walk")
        wan.frame(3).save(cls.root / "still.png")
        (cls.root / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
        for name, first in (("one", "walk/1.png"), ("several", ["walk/1.png", "walk/5.png"])):
            rows = [{"image": "still.png", "prompt": "a cat", "edit_image": first},
                    {"image": "walk/9.png", "prompt": "a dog", "edit_image": "walk/2.png"}]
            (cls.root / f"{name}.json").write_text(json.dumps(rows))
