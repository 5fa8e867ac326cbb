"""What readers that are not installed here make of a LoRA file, by the rules that they publish.

Both work on a model's weights under its original names, without a prefix, and return those that the
file adds to.
"""

from safetensors.torch import load_file


def _add(weight, down, up, scale, lengths):
    """DoRA as in its paper: the sum gets the lengths, of rows [out, 1] or columns [1, in]."""
    total = weight.double() + scale * (up.double() @ down.double())
    if lengths is not None:
        axis = 1 if lengths.shape[0] == total.shape[0] else 0
        total = total * (lengths.double() / total.norm(dim=axis, keepdim=True))
    return total.to(weight.dtype)


def comfyui(path, weights):
    """ComfyUI knows each weight NAME.weight as diffusion_model.NAME, and as lora_unet_NAME with
    underscores for dots; a file has to be used up."""
    file = load_file(path)
    changed = {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        for spelled in ("diffusion_model." + layer, "lora_unet_" + layer.replace(".", "_")):
            pair = next(((a, b) for a, b in ((".lora_down.weight", ".lora_up.weight"),
                                             (".lora_A.weight", ".lora_B.weight"))
                         if spelled + a in file), None)
            if name.endswith(".weight") and pair:
                down, up = (file.pop(spelled + part) for part in pair)
                alpha = file.pop(spelled + ".alpha", None)
                scale = 1.0 if alpha is None else alpha.item() / down.shape[0]
                changed[name] = _add(weight, down, up, scale, file.pop(spelled + ".dora_scale",
                                                                       None))
    assert not file, f"not used: {sorted(file)[:5]}"
    return changed


def diffsynth_studio(path, weights):
    """DiffSynth-Studio takes the name before `.lora_B`, without the adapter's name behind it, for
    that of a layer."""
    file = load_file(path)
    changed = {}
    for key in [key for key in file if ".lora_B." in key]:
        layer = key.split(".lora_B.")[0]
        down, up = file.pop(key.replace("lora_B", "lora_A")), file.pop(key)
        changed[layer + ".weight"] = _add(weights[layer + ".weight"], down, up, 1.0, None)
    assert not file, f"not used: {sorted(file)[:5]}"
    return changed
