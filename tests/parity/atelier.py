"""Runs the program under test: ATELIER_BIN, or build/release/bin/atelier of this checkout.

It computes on ATELIER_PARITY_DEVICE, by default the CPU. With ATELIER_PARITY_DIR set, the files of every call stay below that folder, beside a `command` that
repeats it.
"""

import contextlib
import csv
import itertools
import json
import os
import pathlib
import shlex
import sys
import tempfile

import numpy as np
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from program import PROGRAM, REPOSITORY, run_line  # noqa: E402,F401

TIMEOUT_S = 300
DEVICE = os.environ.get("ATELIER_PARITY_DEVICE", "cpu")
COMPUTING = ("cache", "generate", "probe", "train")
_calls = itertools.count(1)


class ProgramFailed(AssertionError):
    """The program ended with another exit code than 0."""


def program():
    if not PROGRAM.is_file():
        raise FileNotFoundError(
            f"{PROGRAM}: the program is not built; run tools/build, or set ATELIER_BIN")
    return PROGRAM


@contextlib.contextmanager
def call_folder(name):
    kept = os.environ.get("ATELIER_PARITY_DIR")
    if kept:
        folder = pathlib.Path(kept) / "calls" / f"{next(_calls):03d}_{name}"
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="atelier_call_") as folder:
        yield pathlib.Path(folder)


def run(arguments, folder, cwd=None):
    """Runs the program with `arguments`, in `cwd` or in `folder`, where its command is kept, and returns its
    standard output; raises ProgramFailed with its last words."""
    command = [str(program()), *map(str, arguments)]
    if arguments[0] in COMPUTING:
        command += ["--device", DEVICE]
    (folder / "command").write_text(shlex.join(command) + "\n")
    result = run_line(command, cwd=cwd or folder, timeout=TIMEOUT_S)
    if result.returncode != 0:
        raise ProgramFailed(
            f"exit code {result.returncode}: {shlex.join(command)}\n{result.stderr[-2000:]}")
    return result.stdout


def paths_argument(paths):
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return json.dumps([str(path) for path in paths])


def probe(component,
          model_paths,
          inputs,
          gradients=False,
          trainable=None,
          dtype="float32",
          plugin="qwen_image"):
    """Runs one component on named tensors and returns the named tensors that it gives."""
    with call_folder("probe_" + component) as folder:
        save_file({
            name: tensor.detach().clone().contiguous() for name, tensor in inputs.items()
        }, folder / "in.safetensors")
        arguments = [
            "probe", "--plugin", plugin, "--component", component, "--model_paths",
            paths_argument(model_paths), "--inputs", folder / "in.safetensors", "--output",
            folder / "out.safetensors", "--dtype", dtype
        ]
        if gradients:
            arguments.append("--gradients")
        if trainable:
            arguments += ["--trainable", trainable]
        run(arguments, folder)
        with safe_open(folder / "out.safetensors", framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}


def tokenize(folder_of_tokenizer, texts, ascii_only=True, plugin="qwen_image"):
    """The token ids of every text, without a template."""
    with call_folder("probe_tokenizer") as folder:
        lines = [json.dumps(text, ensure_ascii=ascii_only) for text in texts]
        (folder / "texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        run([
            "probe", "--plugin", plugin, "--component", "tokenizer", "--model_paths",
            paths_argument(folder_of_tokenizer), "--inputs", folder / "texts.jsonl", "--output",
            folder / "ids.jsonl"
        ], folder)
        ids = (folder / "ids.jsonl").read_text().split("\n")
        return [json.loads(line) for line in ids if line]


def encode_captions(model_paths, captions, *switches, plugin="qwen_image"):
    """The encodings of captions as `atelier cache` keeps them, [L, D] each, in their order."""
    with call_folder("cache") as folder:
        Image.new("RGB", (64, 64)).save(folder / "a.png")
        rows = [json.dumps({"image": "a.png", "prompt": caption}) for caption in captions]
        (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
        arguments = [
            "cache", "--plugin", plugin, "--model_paths",
            paths_argument(model_paths), "--dataset_base_path", folder, "--dataset_metadata_path",
            folder / "rows.jsonl", "--output_path", folder, "--dtype", "float32", *switches
        ]
        run(arguments, folder)
        items = json.loads((folder / "cache" / "manifest.json").read_text())["items"]
        return [
            load_file(folder / "cache" / "text" / (item["text"] + ".safetensors"))["prompt_embeds"]
            for item in items
        ]


def schedule(**request):
    """The sigmas, the final 0 among them, of one denoising run."""
    with call_folder("probe_schedule") as folder:
        (folder / "in.json").write_text(json.dumps(request))
        run([
            "probe", "--plugin", "qwen_image", "--component", "schedule", "--inputs",
            folder / "in.json", "--output", folder / "out.json"
        ], folder)
        return json.loads((folder / "out.json").read_text())["sigmas"]


def read_pictures(files, mode="RGB"):
    return [np.asarray(Image.open(file).convert(mode)) for file in files]


def generate(model_paths, latents, input_image=None, plugin="qwen_image", mode="RGB", **flags):
    """Generates from the noise `latents`, None: that of the seed, and returns the images, uint8 [H, W, 3],
    or with the channels of another mode, in order."""
    with call_folder("generate") as folder:
        arguments = [
            "generate", "--plugin", plugin, "--model_paths",
            paths_argument(model_paths), "--output", folder / "out.png"
        ]
        if latents is not None:
            save_file({"latents": latents.contiguous()}, folder / "noise.safetensors")
            arguments += ["--latents", folder / "noise.safetensors"]
        if input_image is not None:
            Image.fromarray(input_image).save(folder / "input.png")
            arguments += ["--input_image", folder / "input.png"]
        for name, value in flags.items():
            for one in value if isinstance(value, list) else [value]:
                arguments += ["--" + name] if one is True else ["--" + name, one]
        run(arguments, folder)
        return read_pictures(sorted(folder.glob("out*.png")), mode)


def generate_jobs(model_paths, jobs, **flags):
    """Runs all `jobs`, dicts of a prompts file whose "latents" are tensors, in one process.

    Returns the images of each job, in order.
    """
    with call_folder("generate_jobs") as folder:
        lines = []
        for number, job in enumerate(jobs):
            noise = folder / f"noise_{number}.safetensors"
            save_file({"latents": job["latents"].contiguous()}, noise)
            output = folder / f"job_{number}.png"
            lines.append(json.dumps({**job, "latents": str(noise), "output": str(output)}))
        (folder / "jobs.jsonl").write_text("\n".join(lines) + "\n")
        arguments = [
            "generate", "--plugin", "qwen_image", "--model_paths",
            paths_argument(model_paths), "--prompts_file", folder / "jobs.jsonl"
        ]
        for name, value in flags.items():
            arguments += ["--" + name, value]
        results = [json.loads(line) for line in run(arguments, folder).splitlines()]
        results.sort(key=lambda result: result["line"])
        if [result["line"] for result in results] != list(range(1, len(jobs) + 1)):
            raise AssertionError(f"{len(jobs)} jobs gave the results {results}")
        return [read_pictures(result["output"]) for result in results]


class Run:
    """What a training run left in its folder."""

    def __init__(self, folder):
        self.folder = folder

    def losses(self):
        """The loss of every step, in order."""
        with open(self.folder / "loss.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["key"] == "train/loss"]
        if [int(row["step"]) for row in rows] != list(range(1, len(rows) + 1)):
            raise AssertionError(f"losses of the steps {[row['step'] for row in rows]}")
        return [float(row["value"]) for row in rows]

    def state(self, step, file):
        """The tensors of "trained" or "optimizer" behind a step."""
        return load_file(self.folder / f"checkpoints/step-{step:08d}/{file}.safetensors")

    def weights(self, step):
        return self.folder / f"step-{step}.safetensors"

    def encodings(self, kind):
        """The cached tensors of "text" or "latents", in no order."""
        return [load_file(path) for path in (self.folder / "cache" / kind).rglob("*.safetensors")]


def write_dataset(folder, rows):
    """Writes images, uint8 [H, W, 3], captions and, where they are given, masks, uint8 [H, W]."""
    folder.mkdir()
    columns = ["image", "prompt", "mask"][:len(rows[0])]
    with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number, (picture, prompt, *mask) in enumerate(rows):
            names = [f"{number}.png", prompt, *[f"mask_{number}.png" for _ in mask]]
            writer.writerow(names)
            Image.fromarray(picture).save(folder / names[0])
            for pixels in mask:
                Image.fromarray(pixels).save(folder / names[2])


@contextlib.contextmanager
def train(model_paths, rows, **flags):
    """Trains on `rows` (see write_dataset) in float32 and yields the Run.

    AdamW without clipping, with an eps that keeps the order of sums from deciding; every step is
    logged, and weights and state are kept as --save_steps says.
    """
    with call_folder("train") as folder:
        write_dataset(folder / "data", rows)
        defaults = dict(plugin="qwen_image",
                        model_paths=paths_argument(model_paths),
                        threads=1,
                        dtype="float32",
                        dataset_base_path=folder / "data",
                        dataset_metadata_path=folder / "data/metadata.csv",
                        adam_epsilon=1e-3,
                        max_grad_norm=0,
                        save_steps=1,
                        checkpoints_total_limit=0,
                        enable_csv_log=True,
                        output_path=folder / "out")
        arguments = ["train"]
        for name, value in {**defaults, **flags}.items():
            if value is not None:
                arguments += ["--" + name] if value is True else ["--" + name, value]
        run(arguments, folder)
        yield Run(folder / "out")
