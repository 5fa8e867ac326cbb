"""A tiny model of each family, for processes that work together."""
import json

import lumina2_models
import program
import wan_training_test as wan


def write_models(folder):
    """The flags that name each family's model."""
    program.write_tiny_model(folder / "qwen")
    wan.write_model(folder / "wan")
    return {
        "qwen_image": dict(plugin="qwen_image", model_paths=json.dumps([str(folder / "qwen")])),
        "lumina2": dict(plugin="lumina2", model_paths=json.dumps([str(lumina2_models.get().model)])),
        "wan": dict(plugin=wan.PLUGIN, model_paths=wan.model_paths(folder / "wan")),
    }


def launched(ranks, line):
    return line if ranks == 1 else [line[0], "launch", "--nproc_per_node", str(ranks), "--", *line[1:]]
