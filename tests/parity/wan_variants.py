"""Every variant of plugins/wan/README.md on tiny weights: a line of the page that generates with it, of a short clip, and
what its published scripts train, on rows of short clips."""

import json
import sys

import atelier

sys.path.insert(0, str(atelier.REPOSITORY / "tests/plugins"))
import wan_page_parity_test as page  # noqa: E402
import wan_scripts_test as scripts  # noqa: E402
from pages import generating_lines  # noqa: E402

FRAMES = 9
DANCERS = "Wan-Dancer-14B"
MASK = [1, *[0] * (FRAMES - 2), 1]
DRIVEN = ("animate2_prompt_ref", "animate2_reference_image", "animate2_reference_video")
# What the scripts of both forms of Animate-2 train, of all blocks.
DRIVEN_MODEL = scripts.Model("wan22_animate2_original", asked=DRIVEN, columns=DRIVEN[1:],
                             trained=",".join(f"dit.blocks.{i}.block.self_attn.{name}" for i in range(10) for name in "qkv"),
                             layers="self_attn.q,self_attn.k,self_attn.v")
DRIVEN_FILE = "Wan2.2-Animate-2-14B/wan_animate_2/wan_animate_2_bf16"

# Published model of each variant: what its lines of the page name it by.
PLACES = {
    **{name: name for name in (
        "Wan2.1-T2V-14B", "Wan2.1-I2V-14B-480P", "Wan2.1-FLF2V-14B-720P", "Wan2.2-T2V-A14B", "Wan2.2-I2V-A14B",
        "Wan2.2-TI2V-5B", "Wan2.1-Fun-1.3B-InP", "Wan2.2-Fun-A14B-InP", "Wan2.1-Fun-1.3B-Control",
        "Wan2.1-Fun-V1.1-1.3B-Control", "Wan2.2-Fun-A14B-Control", "Wan2.1-Fun-V1.1-1.3B-Control-Camera",
        "Wan2.2-Fun-A14B-Control-Camera", "Wan2.1-VACE-14B", "Wan2.2-VACE-Fun-A14B", "Wan2.2-Animate-14B",
        "Wan2.2-S2V-14B")},
    "krea-realtime-video": "krea-realtime-video/krea-realtime-video-14b.safetensors",
    "Wan2.1-1.3b-speedcontrol-v1": "Wan2.1-1.3b-speedcontrol-v1/model.safetensors",
    "Wan2.2-Animate-2-14B": f"{DRIVEN_FILE}.safetensors",
    "Wan2.2-Animate-2-14B-distill": f"{DRIVEN_FILE}_distillation.safetensors",
    "Video-As-Prompt-Wan2.1-14B": "Video-As-Prompt-Wan2.1-14B/transformer",
    "LongCat-Video": "LongCat-Video/dit",
    f"{DANCERS}-global": f"{DANCERS}/global_model.safetensors",
    f"{DANCERS}-local": f"{DANCERS}/local_model.safetensors",
}


def line_of(variant):
    """The last line of the page that names the variant's model."""
    def paths(line):
        named = page.value_of(line, "--model_paths")
        return json.loads(named) if named.startswith("[") else [named]
    place = f"models/{PLACES[variant]}"
    return [line for _, line in generating_lines("wan") if place in paths(line)][-1]


def generating(runs, variant):
    """The words of the line for a short clip of two steps, of both experts where there are two. `runs`: of PageRuns."""
    words, _ = runs.words_of(line_of(variant))
    asked = dict(num_frames=17 if "LongCat" in variant else FRAMES, num_inference_steps=2, seed=3, threads=1)
    if len(experts_of(variant)) == 2:
        asked["switch_boundary"] = 0.95
    for flag, value in asked.items():
        if page.value_of(words, "--" + flag, value) is None:
            words += ["--" + flag, value]
    if page.value_of(words, "--wantodance_keyframes", "clip.mp4"):
        page.value_of(words, "--wantodance_keyframes_mask", ",".join(map(str, MASK)))
    return words


def script_of(variant):
    """What the variant's published scripts say, by tests/plugins/wan_scripts_test.py."""
    return scripts.MODELS.get(variant, DRIVEN_MODEL)


def experts_of(variant):
    """Endings of the names of what its experts have each."""
    return ("", "2") if script_of(variant).boundary else ("",)


def write_rows(folder):
    """Clips, pictures and a sound, and a table of two rows for each variant."""
    scripts.write_clips(folder, frames=(FRAMES, FRAMES))
    scripts.write_sound(folder / "sound.wav", seconds=1)
    (folder / "three").mkdir()  # pictures of the global dancer, which FRAMES key frames lie between
    for number in range(3):
        (folder / f"three/{number}.png").symlink_to(folder / f"{number}.png")
    for variant in PLACES:
        script = script_of(variant)
        values = {column: value for column, value in scripts.VALUES.items() if column in {*script.asked, *script.columns}}
        if "wantodance_keyframes_mask" in values:
            values["wantodance_keyframes_mask"] = MASK
        if variant.endswith("-global"):
            values |= dict(scripts.PICTURES, video="three")
        rows = [{"video": f"clip_{clip}", "prompt": f"clip number {clip}", **values} for clip in range(2)]
        (folder / f"{variant}.json").write_text(json.dumps(rows))


def learning(runs, variant, rows):
    """Flags that train on write_rows(), but for what is trained."""
    script, words, _ = script_of(variant), *runs.words_of(line_of(variant))
    flags = dict(plugin="wan", model_paths=page.value_of(words, "--model_paths"), dataset_base_path=rows,
                 model_hints=page.value_of(words, "--model_hints"),
                 dataset_metadata_path=rows / f"{variant}.json", height=page.value_of(words, "--height"),
                 width=page.value_of(words, "--width"), num_frames=FRAMES, threads=1, dtype="float32", seed=5)
    if script.columns:
        flags["data_file_keys"] = ",".join(("video", *script.columns))
    if script.asked:
        flags["extra_inputs"] = ",".join(script.asked)
    if variant.endswith("-global"):
        flags["framewise_decoding"] = True
    return flags


def of_both(variant, names):
    """Of two experts the components of both, or layers of them."""
    return ",".join(name + ending for ending in experts_of(variant) for name in names.split(","))


def lora(variant):
    """Flags of the LoRA that is published of it."""
    script = script_of(variant)
    return dict(lora_base_model=of_both(variant, script.lora_base), lora_target_modules=script.layers, lora_rank=2)


def whole(variant):
    """Flags of what is trained whole."""
    return dict(trainable_models=of_both(variant, script_of(variant).trained))
