#!/usr/bin/env python3
"""Trains what steers the model of this example beside its prompt, and draws with it and without.

    python3 controls.py KIND FOLDER

| KIND | what is trained | what it is given |
| --- | --- | --- |
| eligen | a LoRA | prompts of things, and masks of where they stand |
| canny | a blockwise ControlNet | the edges of a picture |
| inpaint | a blockwise ControlNet | a picture, and a mask of what is made anew |
| context | a LoRA for In-Context-Control | the edges of a picture, or how near its things are |
| union | a ControlNet of diffusers' layout, two blocks | the edges of a picture, or how near its things are |

writes FOLDER/data (what is learnt), FOLDER/run (the training), FOLDER/drawn (pictures) and
FOLDER/sheet.png: what the model is given, what it draws without it, and what it draws with it, from
one prompt and seed. Prints how many pictures of each have the things, places and ground of the
picture that was asked: colors and shapes as classify.py sees them, middles within 6 pixels. A run that was interrupted goes on. Needs numpy and Pillow.
"""

import argparse
import dataclasses
import functools
import json
import pathlib

import numpy as np
from PIL import Image

import classify
import inpaint
import pictures
import plot
import recolor
import score

HERE = pathlib.Path(__file__).resolve().parent
LEARNT_SEED, SEED, COUNT, SHOWN = 31, 7071, 24, 6
CELL = 16  # pixels of a token's side
BOX = 3 * CELL  # of an entity's mask
EDGE = 40  # levels of 255 between neighbours
NEAR = 6  # pixels between a thing's middle and where it was to be


@dataclasses.dataclass(frozen=True)
class Row:
    """A picture and what is given beside it: arrays are files of pictures, lists of those several."""
    image: np.ndarray  # uint8 [H, W, 3], or a list of such
    prompt: str
    given: dict  # by input: an array, or a list of arrays or texts


# ---- What is given ----


def edges(picture):
    """White where a pixel differs much from the one to its right or below it, [H, W, 3]."""
    levels = picture.astype(int)
    steps = [np.abs(np.diff(levels, axis=axis, append=levels.take([-1], axis))).max(-1)
             for axis in (0, 1)]
    return grey(np.max(steps, 0) > EDGE)


def grey(values):
    """uint8 [H, W, 3] of what is False or True, or of parts of white."""
    return np.repeat(np.uint8(255 * np.asarray(values, float))[:, :, None], 3, axis=2)


def nearness(scene):
    """As of a camera: the ground is far, and things stand before it, the larger the nearer."""
    near = np.full((pictures.SIZE, pictures.SIZE), 0.15)
    for thing in sorted(scene.things, key=lambda thing: thing.radius):
        near[recolor.mask_of(thing)] = 0.4 + thing.radius / 80
    return grey(near)


def words_of(thing):
    return pictures.with_article(f"{thing.color} {thing.shape}")


# ---- Rows ----


def boxed_scene(rng):
    """Two things, each in the middle of a box of whole tokens. Returns the scene and the corners."""
    scene = pictures.scene(rng)
    while len(scene.things) < 2:
        scene = pictures.scene(rng)
    last = (pictures.SIZE - BOX) // CELL
    along = np.array(pictures.RELATIONS[scene.relation])
    while True:
        corners = rng.integers(0, last + 1, (2, 2)) * CELL
        apart = corners[0] - corners[1]
        if apart @ along >= BOX and apart @ along > abs(apart @ along[::-1]):
            break
    things = tuple(dataclasses.replace(thing, x=corner[0] + BOX / 2, y=corner[1] + BOX / 2,
                                       radius=rng.uniform(20, 23))
                   for thing, corner in zip(scene.things, corners))
    return dataclasses.replace(scene, things=things), corners


def entity_row(rng):
    scene, corners = boxed_scene(rng)
    masks = []
    for x, y in corners:
        masks.append(np.zeros((pictures.SIZE, pictures.SIZE), bool))
        masks[-1][y:y + BOX, x:x + BOX] = True
    return Row(pictures.paint(scene), scene.prompt(), {
        "eligen_entity_prompts": [words_of(thing) for thing in scene.things],
        "eligen_entity_masks": [grey(mask) for mask in masks],
    })


def canny_row(rng):
    scene = pictures.scene(rng, wide=True)
    picture = pictures.paint(scene)
    return Row(picture, scene.prompt(), {"blockwise_controlnet_image": [edges(picture)]})


def inpaint_row(rng, anew=False):
    """The picture that is given is the one that is learnt, which has nothing to learn from below
    the mask, or, `anew`, one of which another thing is asked there."""
    scene = pictures.scene(rng, wide=True)
    place = rng.integers(len(scene.things))
    given, things = pictures.paint(scene), list(scene.things)
    mask = inpaint.mask_around(things[place])
    if anew:
        others = things[:place] + things[place + 1:]
        things[place] = inpaint.another(things[place], others, scene.ground, rng)
        scene = dataclasses.replace(scene, things=tuple(things))
    return Row(pictures.paint(scene), scene.prompt(), {
        "blockwise_controlnet_image": [given],
        "blockwise_controlnet_inpaint_mask": [grey(mask)],
    })


def either_control(rng):
    scene = pictures.scene(rng, wide=True)
    picture = pictures.paint(scene)
    return scene, picture, edges(picture) if rng.random() < 0.5 else nearness(scene)


def context_row(rng):
    scene, picture, control = either_control(rng)
    return Row(picture, "Context_Control. " + scene.prompt(), {"context_image": control})


def union_row(rng):
    scene, picture, control = either_control(rng)
    return Row(picture, scene.prompt(), {"control_image": [control]})


def write(folder, make_row, count, seed):
    """Writes rows numbered from 0, each a function of seed and number. Returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, lines = [], []
    for number in range(count):
        row = make_row(np.random.default_rng([seed, number]))
        line = {"image": save(folder / f"{number:06d}.png", row.image), "prompt": row.prompt}
        for name, given in row.given.items():
            line[name] = save(folder / f"{number:06d}_{name}.png", given)
        rows.append(row)
        lines.append(json.dumps(line) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")
    return rows


def save(path, given):
    """Writes what is a picture, or each of several. Returns the name, the names or the texts."""
    if isinstance(given, list):
        return [save(path.with_stem(f"{path.stem}_{number}"), one)
                for number, one in enumerate(given)]
    if isinstance(given, str):
        return given
    Image.fromarray(given).save(path)
    return path.name


# ---- What is trained ----


def read_bfloat16(path):
    """All tensors of a file, float32, by name."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            bits = np.frombuffer(data, np.uint16, (end - begin) // 2, start + begin)
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def denoiser():
    return read_bfloat16(HERE / "model/transformer/diffusion_pytorch_model.safetensors")


def linear(rng, rows, columns):
    return rng.normal(0, columns**-0.5, (rows, columns))


def blockwise(channels, seed=51):
    """A ControlNet that adds nothing yet: for each block of the denoiser one that ends in zeros."""
    rng = np.random.default_rng(seed)
    own = denoiser()
    width = own["img_in.bias"].size
    blocks = sum(name.endswith(".img_mod.1.bias") for name in own)
    tensors = {"img_in.weight": linear(rng, width, 4 * channels), "img_in.bias": np.zeros(width)}
    for number in range(blocks):
        name = f"controlnet_blocks.{number}."
        tensors |= {name + "x_rms.weight": np.ones(width), name + "y_rms.weight": np.ones(width),
                    name + "input_proj.weight": linear(rng, width, width),
                    name + "input_proj.bias": np.zeros(width),
                    name + "output_proj.weight": np.zeros((width, width)),
                    name + "output_proj.bias": np.zeros(width)}
    return tensors


def of_diffusers(blocks=2):
    """A ControlNet that adds nothing yet and begins as the denoiser's first blocks."""
    own = denoiser()
    width, rows = own["img_in.weight"].shape
    kept = ("time_text_embed.", "txt_norm.", "txt_in.", "img_in.",
            *(f"transformer_blocks.{number}." for number in range(blocks)))
    tensors = {name: value for name, value in own.items() if name.startswith(kept)}
    for name in ("controlnet_x_embedder", *(f"controlnet_blocks.{n}" for n in range(blocks))):
        columns = rows if name == "controlnet_x_embedder" else width
        tensors |= {name + ".weight": np.zeros((width, columns)), name + ".bias": np.zeros(width)}
    return tensors


def write_float32(path, tensors):
    header, parts, end = {}, [], 0
    if "txt_norm.weight" in tensors:  # it has blocks of the denoiser, whose shapes do not tell all
        config = json.loads((HERE / "model/transformer/config.json").read_text(encoding="utf-8"))
        told = {"axes_dims_rope": config["axes_dims_rope"]}
        header["__metadata__"] = {"atelier.config": json.dumps(told)}
    for name, value in tensors.items():
        parts.append(np.asarray(value, np.float32).tobytes())
        header[name] = {"dtype": "F32", "shape": np.shape(value),
                        "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


LEARNING = {
    "adam_beta2": 0.99, "lr_scheduler": "cosine", "lr_warmup_steps": 50, "batch_size": 16,
    "num_epochs": 1000, "weighting_scheme": "none", "caption_dropout_rate": 0.1, "dtype": "float32",
    "save_dtype": "bfloat16", "save_steps": 500, "threads": 1, "resume": "latest",
}
LORA = LEARNING | {"lora_base_model": "dit", "lora_rank": 16, "learning_rate": 2e-3,
                   "lora_target_modules": ",".join(recolor.LAYERS)}


@dataclasses.dataclass(frozen=True)
class Kind:
    make_row: callable
    settings: dict
    net: callable = None  # the weights that a ControlNet begins with
    make_shown: callable = None  # rows that are drawn, where they are others
    count: int = 3000  # of rows that are learnt


KINDS = {
    "eligen": Kind(entity_row, LORA | {"max_train_steps": 1200}, count=4000),
    "context": Kind(context_row, LORA | {"max_train_steps": 1200, "lora_checkpoint": recolor.LORA}),
    "canny": Kind(canny_row, LEARNING | {"trainable_models": "blockwise_controlnet",
                                         "learning_rate": 2e-3, "max_train_steps": 2000},
                  lambda: blockwise(16), count=4000),
    "inpaint": Kind(inpaint_row, LEARNING | {"trainable_models": "blockwise_controlnet",
                                             "learning_rate": 2e-3, "max_train_steps": 900},
                    lambda: blockwise(17), functools.partial(inpaint_row, anew=True)),
    "union": Kind(union_row, LEARNING | {"trainable_models": "controlnet",
                                         "learning_rate": 1e-3, "max_train_steps": 1000},
                  of_diffusers, count=1500),
}


def train(program, kind, folder):
    """Returns the file of what was learnt: the program goes on with a run that was interrupted."""
    data, settings = folder / "data", kind.settings
    if not (data / "metadata.jsonl").exists():
        write(data, kind.make_row, kind.count, LEARNT_SEED)
    models = [HERE / "model"]
    if kind.net:
        models.append(folder / "begin.safetensors")
        write_float32(models[-1], kind.net())
    given = kind.make_row(np.random.default_rng(0)).given
    files = [name for name in given if not name.endswith("_prompts")]
    score.run(program, "train", models, "--dataset_base_path", data, "--dataset_metadata_path",
              data / "metadata.jsonl", "--data_file_keys", ",".join(["image", *files]),
              "--extra_inputs", ",".join(given), "--output_path", folder / "run",
              *(text for name, value in settings.items() for text in (f"--{name}", value)))
    return folder / "run" / f"step-{settings['max_train_steps']}.safetensors"


# ---- What is drawn ----


def draw(program, kind, learnt, folder, count=COUNT):
    """Draws prompts that were not learnt. Returns rows, and pictures drawn without and with what
    is given, uint8 [count, H, W, 3]."""
    rows = write(folder, kind.make_shown or kind.make_row, count, SEED)
    lines = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    extra = () if kind.net else ("--lora", learnt)
    drawn = []
    for name, models, lora in (("without", [HERE / "model"], ()),
                               ("with", [HERE / "model", *([learnt] if kind.net else [])], extra)):
        jobs = []
        for number, (row, line) in enumerate(zip(rows, lines)):
            job = {"prompt": row.prompt, "seed": SEED + number,
                   "output": str(folder / f"{number:03d}_{name}.png")}
            if name == "with":
                job |= {key: paths_of(folder, line[key]) for key in row.given}
            else:
                job["prompt"] = job["prompt"].removeprefix("Context_Control. ")
            jobs.append(job)
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(job) + "\n" for job in jobs), encoding="utf-8")
        score.run(program, "generate", models, "--prompts_file", file, "--height", pictures.SIZE,
                  "--width", pictures.SIZE, "--num_inference_steps", score.STEPS, "--cfg_scale",
                  score.CFG_SCALE, "--quiet", *lora)
        drawn.append(np.stack([score.read(job["output"]) for job in jobs]))
    return rows, *drawn


def is_right(picture, wanted):
    """Whether things, their places and the ground are those of the wanted picture."""
    seen, asked = classify.classify(picture), classify.classify(wanted)
    if (seen.ground, seen.pattern) != (asked.ground, asked.pattern):
        return False
    found = [[(thing.color, thing.shape) == (other.color, other.shape) and
              np.hypot(thing.x - other.x, thing.y - other.y) <= NEAR for other in seen.things]
             for thing in asked.things]
    return len(seen.things) == len(asked.things) and all(map(any, found))


def paths_of(folder, given):
    if isinstance(given, list):
        return [paths_of(folder, one) for one in given]
    return str(folder / given) if given.endswith(".png") else given


def shown(row):
    """What is given, as one picture."""
    if "eligen_entity_masks" in row.given:
        picture = np.full((pictures.SIZE, pictures.SIZE, 3), 128, np.uint8)
        for words, mask in zip(row.given["eligen_entity_prompts"], row.given["eligen_entity_masks"]):
            picture[mask[:, :, 0] > 0] = pictures.COLORS[words.split()[1]]
        return picture
    parts = [part for given in row.given.values()
             for part in (given if isinstance(given, list) else [given])]
    if len(parts) == 2:  # a picture, and its mask
        return np.where(parts[1] > 0, np.uint8(128), parts[0])
    return parts[0]


def show(program, kind, learnt, folder):
    """Leaves FOLDER/sheet.png, and returns how many pictures are right."""
    rows, without, steered = draw(program, kind, learnt, folder / "drawn")
    stacks = [Image.fromarray(np.concatenate([shown(row), *both]))
              for row, *both in zip(rows[:SHOWN], without, steered)]
    sheet = plot.sheet(stacks, [row.prompt for row in rows]).quantize(64, kmeans=2)
    sheet.save(folder / "sheet.png", optimize=True)
    return {name: sum(is_right(picture, row.image) for picture, row in zip(drawn, rows))
            for name, drawn in (("without", without), ("with", steered))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/bin/atelier")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]
    learnt = train(arguments.program, kind, arguments.folder)
    right = show(arguments.program, kind, learnt, arguments.folder)
    print(json.dumps({"count": COUNT, "right": right}))


if __name__ == "__main__":
    main()
