#!/usr/bin/env python3
"""Writes the table "What fits" of docs/memory.md: what `atelier plan` says of published sizes on usual GPUs.

    .deps/venv/bin/python bench/memory_table.py [--check [--quick] [--only MODEL/TASK/GPU]...]

The models are files of the published names and shapes without values (bench/random_models.py), so nothing is
downloaded. --check writes nothing: it plans anew, and ends with 1 where the table says something else. The program is
build/release/bin/atelier, or ATELIER_BIN.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "bench"))
import families  # noqa: E402
import random_models  # noqa: E402

PAGE = REPOSITORY / "docs/memory.md"
BEGIN, END = "<!-- what fits: bench/memory_table.py writes this -->\n", "<!-- end of what fits -->\n"
GPUS = {"8 GB": "4060", "12 GB": "3060", "16 GB": "4080", "24 GB": "4090", "48 GB": "l40s", "80 GB": "h100"}


@dataclasses.dataclass(frozen=True)
class Model:
    family: families.Family
    # What is made, or learnt; sides are those that the model is for, and of Wan 1.3B and 14B its smaller ones.
    size: dict
    # The denoisers that are trained, and of the tasks those that are planned.
    denoisers: str = "dit"
    tasks: tuple = ("generate", "LoRA", "full")
    # What the files do not tell.
    variant: str = ""
    # How many pictures as large as the size are changed, and whether one is the first frame of a clip.
    pictures: int = 0
    has_first_frame: bool = False

    def is_clip(self):
        return "num_frames" in self.size


SMALL_CLIP = dict(height=480, width=832, num_frames=81)
NOT_FULL = ("generate", "LoRA")
EXPERTS = dict(size=SMALL_CLIP, denoisers="dit,dit2", tasks=NOT_FULL)
EDIT = dict(family=families.FAMILIES["qwen_image"], size=dict(height=1024, width=1024), tasks=NOT_FULL,
            variant="qwen-image-edit-2509")
MODELS = {
    "Qwen-Image": Model(families.FAMILIES["qwen_image"], dict(height=1328, width=1328)),
    "Qwen-Image-Edit-2509, one picture": Model(pictures=1, **EDIT),
    "Qwen-Image-Edit-2509, three pictures": Model(pictures=3, **EDIT),
    "Lumina-Image 2.0": Model(families.FAMILIES["lumina2"], dict(height=1024, width=1024)),
    "Wan 2.1 1.3B": Model(families.WAN, SMALL_CLIP),
    "Wan 2.1 14B": Model(families.WAN_14B, SMALL_CLIP),
    "Wan 2.2 T2V-A14B": Model(families.WAN_22, **EXPERTS),
    "Wan 2.2 I2V-A14B": Model(families.WAN_22_IMAGE, has_first_frame=True, **EXPERTS),
    "Wan 2.2 TI2V-5B": Model(families.WAN_22_5B, dict(height=704, width=1280, num_frames=121), tasks=NOT_FULL),
}
QUICK = ["Lumina-Image 2.0/generate/8 GB", "Lumina-Image 2.0/LoRA/24 GB", "Lumina-Image 2.0/full/80 GB",
         "Wan 2.2 TI2V-5B/generate/16 GB", "Wan 2.2 TI2V-5B/LoRA/24 GB"]
PROMPT = "a lighthouse at dusk"
HOST_MEMORY = {"generate": "64GiB", "LoRA": "64GiB", "full": "512GiB"}


def write_data(folder, model):
    """A row as large as what is learnt, and the picture that a clip begins with, or that is changed."""
    from PIL import Image
    height, width = model.size["height"], model.size["width"]
    Image.new("RGB", (width, height), (90, 120, 90)).save(folder / "picture.png")
    count, name = model.size.get("num_frames", 1), "clip.gif" if model.is_clip() else "image.png"
    frames = [Image.new("RGB", (width, height), (2 * i, 90, 90)) for i in range(count)]
    # Milliseconds, so slow that at the model's rate there are no fewer frames.
    more = dict(save_all=True, append_images=frames[1:], duration=70) if model.is_clip() else {}
    frames[0].save(folder / name, **more)
    row = {"video" if model.is_clip() else "image": name, "prompt": PROMPT}
    if model.pictures:
        row["edit_image"] = ["picture.png"] * model.pictures
    (folder / "metadata.json").write_text(json.dumps([row]))


def seconds_text(seconds):
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def flags_of(model, task, folder, weights):
    """What is asked of the program: values are words, or lists of them."""
    flags = {"plugin": model.family.plugin, "model_paths": weights, "host_memory": HOST_MEMORY[task], **model.size}
    if model.variant:
        flags["model_hints"] = json.dumps({"*": {"variant": model.variant}})
    if task == "generate":
        flags |= {"prompt": PROMPT, "output": folder / "out.png"}
        if model.pictures:
            flags["edit_image"] = [folder / "picture.png"] * model.pictures
        if model.has_first_frame:
            flags["input_image"] = folder / "picture.png"
        return flags
    flags |= {"dataset_base_path": folder, "dataset_metadata_path": folder / "metadata.json",
              "output_path": folder / "run"}
    if model.pictures:
        flags |= {"data_file_keys": "image,edit_image", "extra_inputs": "edit_image"}
    if task == "LoRA":
        return flags | {"lora_base_model": model.denoisers, "lora_rank": 32}
    return flags | {"trainable_models": model.denoisers}


def plan(title, task, gpu, folder, weights, more=()):
    """The phases of a plan; None where it is refused."""
    command = [os.environ.get("ATELIER_BIN", REPOSITORY / "build/release/bin/atelier"), "plan",
               "generate" if task == "generate" else "train", "--device_profile", gpu, *more]
    for name, value in flags_of(MODELS[title], task, folder, weights).items():
        for one in value if isinstance(value, list) else [value]:
            command += ["--" + name, one]
    file = folder / f"{task}_{gpu}.json"
    done = subprocess.run([*map(str, command), "--json", str(file)], cwd=folder, capture_output=True, text=True)
    if done.returncode == 4:
        return None
    if done.returncode != 0:
        sys.exit(f"error: {title}, {task}, {gpu}: {done.stderr}")
    return json.loads(file.read_text())["phases"]


def cell(title, task, gpu, folder, weights):
    """The text of a cell: how long it takes, in tiles where nothing else fits, or no."""
    phases, words = plan(title, task, gpu, folder, weights), ""
    if phases is None and task == "generate":
        phases, words = plan(title, task, gpu, folder, weights, ["--tiled"]), ", tiled"
    if phases is None:
        return "no"
    if task == "generate":
        return seconds_text(sum(phase["seconds"] * phase["passes"] for phase in phases)) + words
    return seconds_text(next(phase["seconds"] for phase in phases if phase["name"] == "train")) + " a step"


def rows_of(only):
    """(model, task) and the cells of its row; cells that are not asked for are None."""
    rows, weights = {}, {}
    with tempfile.TemporaryDirectory(prefix="atelier_table_") as name:
        for number, (title, model) in enumerate(MODELS.items()):
            wanted = [(task, gpu) for task in model.tasks for gpu in GPUS
                      if not only or f"{title}/{task}/{gpu}" in only]
            if not wanted:
                continue
            if model.family.title not in weights:
                weights[model.family.title] = pathlib.Path(name) / f"weights_{number}"
                weights[model.family.title].mkdir()
                random_models.write_model(weights[model.family.title], model.family, is_published=True)
            folder = pathlib.Path(name) / f"data_{number}"
            folder.mkdir()
            write_data(folder, model)
            for task, gpu in wanted:
                cells = rows.setdefault((title, task), dict.fromkeys(GPUS))
                cells[gpu] = cell(title, task, GPUS[gpu], folder, weights[model.family.title])
                print(f"{title}, {task}, {gpu}: {cells[gpu]}", file=sys.stderr)
    return rows


def table_of(rows):
    lines = ["| model | task | " + " | ".join(f"{size}, {name}" for size, name in GPUS.items()) + " |",
             "| --- | --- |" + " ---: |" * len(GPUS)]
    for (title, task), cells in rows.items():
        lines.append(f"| {title} | {task} | " + " | ".join(cells.values()) + " |")
    return "\n".join(lines) + "\n"


def differences(rows, text):
    """Cells that the page says otherwise."""
    for (title, task), cells in rows.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| {title} | {task} |")), None)
        said = dict(zip(GPUS, row.strip("| ").split(" | ")[2:])) if row else {}
        for gpu, value in cells.items():
            if value is not None and said.get(gpu) != value:
                yield f"{title}, {task}, {gpu}: the table says {said.get(gpu)}, the plan {value}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", action="append", default=[], help='cells to check: "Qwen-Image/LoRA/24 GB"')
    parser.add_argument("--quick", action="store_true", help="checks a few cells, as the tests do")
    options = parser.parse_args()
    options.only += QUICK if options.quick else []
    if options.only and not options.check:
        parser.error("--only goes with --check")
    rows = rows_of(options.only)
    before, table, after = re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", PAGE.read_text())
    if options.check:
        wrong = list(differences(rows, table))
        print("\n".join(wrong))
        return 1 if wrong else 0
    PAGE.write_text(before + BEGIN + "\n" + table_of(rows) + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
