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


def write_clips(folder):
    """A clip and a still, and the flags that train wan on them."""
    wan.write_walk(folder / "walk")
    wan.frame(3).save(folder / "still.png")
    (folder / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
    return dict(dataset_base_path=folder, dataset_metadata_path=folder / "clips.csv", num_frames=5, height=16, width=32)
