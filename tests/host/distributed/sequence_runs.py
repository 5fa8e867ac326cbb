"""Tiny models of all families, and datasets for them, for processes that share rows."""
import json
import pathlib
import tempfile
import unittest

import lumina2_models
import program
import wan_training_test as wan
from train_cli_test import write_dataset


class SequenceRuns(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_sequence_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        program.write_tiny_model(cls.root / "qwen")
        program.run_line([wan.WRITE_MODEL, wan.PLUGIN, str(cls.root / "wan")], code=0)
        wan.write_tokenizer(cls.root / "wan/tokenizer")
        for component, name in wan.FOLDERS.items():
            (cls.root / "wan" / component).rename(cls.root / "wan" / name)
        parts = (*wan.ENCODERS, *wan.FOLDERS.values())
        cls.models = {
            "qwen_image": dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / "qwen")])),
            "lumina2": dict(plugin="lumina2", model_paths=json.dumps([str(lumina2_models.get().model)])),
            "wan": dict(plugin=wan.PLUGIN, model_paths=json.dumps([str(cls.root / "wan" / part) for part in parts])),
        }
        for name, variant in (("one", "Qwen-Image-Edit"), ("several", "Qwen-Image-Edit-2511")):
            (cls.root / variant).symlink_to(cls.root / "qwen")
            cls.models[name] = dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / variant)]))
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))
        (cls.root / "walk").mkdir()
        for i in range(12):
            wan.frame(i).save(cls.root / "walk" / f"{i}.png")
        wan.frame(3).save(cls.root / "still.png")
        (cls.root / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
        for name, first in (("one", "walk/1.png"), ("several", ["walk/1.png", "walk/5.png"])):
            rows = [{"image": "still.png", "prompt": "a cat", "edit_image": first},
                    {"image": "walk/9.png", "prompt": "a dog", "edit_image": "walk/2.png"}]
            (cls.root / f"{name}.json").write_text(json.dumps(rows))

    @staticmethod
    def launched(ranks, line):
        return line if ranks == 1 else [line[0], "launch", "--nproc_per_node", str(ranks), "--", *line[1:]]
