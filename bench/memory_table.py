#!/usr/bin/env python3
"""Writes the table "What fits" of docs/memory.md: what `atelier plan` says of published sizes on usual GPUs.

    .deps/venv/bin/python bench/memory_table.py [--check [--quick] [--only MODEL/TASK/GPU]...]

The models are files of the published names and shapes without values (bench/random_models.py), so nothing is
downloaded. --check writes nothing: it plans anew, and ends with 1 where the table says something else. The program is
build/release/bin/atelier, or ATELIER_BIN.
"""
import argparse
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
# What is made, or learnt; sides are those that the model is for, and of Wan 1.3B its smaller ones.
SIZES = {
    "Qwen-Image": dict(height=1328, width=1328),
    "Lumina-Image 2.0": dict(height=1024, width=1024),
    "Wan 2.1 1.3B": dict(height=480, width=832, num_frames=81),
    "Wan 2.1 14B": dict(height=480, width=832, num_frames=81),
}
FAMILIES = {family.title: family for family in (*families.FAMILIES.values(), families.WAN, families.WAN_14B)}
QUICK = ["Lumina-Image 2.0/generate/8 GB", "Lumina-Image 2.0/LoRA/24 GB", "Lumina-Image 2.0/full/80 GB"]
TASKS = {
    "generate": dict(prompt="a lighthouse at dusk", output="out.png", host_memory="64GiB"),
    "LoRA": dict(lora_base_model="dit", lora_rank=32, host_memory="64GiB"),
    "full": dict(trainable_models="dit", host_memory="512GiB"),
}


def write_data(folder, size):
    """A row as large as what is learnt."""
    from PIL import Image
    count, name = size.get("num_frames", 1), "clip.gif" if "num_frames" in size else "image.png"
    frames = [Image.new("RGB", (size["width"], size["height"]), (3 * i, 90, 90)) for i in range(count)]
    more = dict(save_all=True, append_images=frames[1:], duration=60) if count > 1 else {}
    frames[0].save(folder / name, **more)
    column = "video" if count > 1 else "image"
    (folder / "metadata.csv").write_text(f"{column},prompt\n{name},a lighthouse at dusk\n")


def seconds_text(seconds):
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cell(folder, title, task, gpu):
    """The text of a cell: how long it takes, or no."""
    flags = {"plugin": FAMILIES[title].plugin, "model_paths": folder / "model", "device_profile": gpu,
             **SIZES[title], **TASKS[task]}
    if task != "generate":
        flags |= {"dataset_base_path": folder / "data", "dataset_metadata_path": folder / "data/metadata.csv",
                  "output_path": folder / "run"}
    command = [os.environ.get("ATELIER_BIN", REPOSITORY / "build/release/bin/atelier"), "plan",
               "generate" if task == "generate" else "train"]
    for name, value in flags.items():
        command += ["--" + name, str(value)]
    plan = folder / "plan.json"
    done = subprocess.run([str(word) for word in command] + ["--json", str(plan)], cwd=folder, capture_output=True,
                          text=True)
    if done.returncode == 4:
        return "no"
    if done.returncode != 0:
        sys.exit(f"error: {title}, {task}, {gpu}: {done.stderr}")
    phases = json.loads(plan.read_text())["phases"]
    if task == "generate":
        return seconds_text(sum(phase["seconds"] * phase["passes"] for phase in phases))
    return seconds_text(next(phase["seconds"] for phase in phases if phase["name"] == "train")) + " a step"


def rows_of(only):
    """(model, task) and the cells of its row; cells that are not asked for are None."""
    rows = {}
    for title, size in SIZES.items():
        wanted = [(task, gpu) for task in TASKS for gpu in GPUS if not only or f"{title}/{task}/{gpu}" in only]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "model").mkdir()
            (folder / "data").mkdir()
            random_models.write_model(folder / "model", FAMILIES[title], is_published=True)
            write_data(folder / "data", size)
            for task, gpu in wanted:
                cells = rows.setdefault((title, task), dict.fromkeys(GPUS))
                cells[gpu] = cell(folder, title, task, GPUS[gpu])
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
    before, table, after = re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", PAGE.read_text())
    rows = rows_of(options.only)
    if options.check:
        wrong = list(differences(rows, table))
        print("\n".join(wrong))
        return 1 if wrong else 0
    if options.only:
        parser.error("--only goes with --check")
    PAGE.write_text(before + BEGIN + "\n" + table_of(rows) + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
