"""A node of ComfyUI that has `atelier serve` make pictures, or the frames of a clip.

It needs nothing that ComfyUI does not have. The server's key, where it wants one, is read from the environment,
ATELIER_API_KEY: values of a node are saved with the workflow, and written into its pictures.
"""
import base64
import contextlib
import http.client
import io
import json
import os
import time
import urllib.error
import urllib.request
import uuid

import comfy.model_management
import comfy.utils
import numpy as np
import torch
from PIL import Image, ImageSequence

LOOK_EVERY_S = 0.25
MOST_PIXELS = 16384
TIMEOUT_S = 60
TRIES = 3  # of a request that gets no answer


def home():
    """The server that nodes call where a workflow names none, and the only one that is told the key."""
    return os.environ.get("ATELIER_SERVER", "http://127.0.0.1:7860").rstrip("/")


class Server:
    """The own API of a server, at an address."""

    def __init__(self, address):
        self.address = address.rstrip("/")

    def bytes_of(self, method, path, value=None):
        headers = {"Content-Type": "application/json"}
        # A workflow of someone else's may name any address.
        if self.address == home() and (key := os.environ.get("ATELIER_API_KEY")):
            headers["Authorization"] = f"Bearer {key}"
        if method == "POST":  # one that is sent again makes no second job
            headers["Idempotency-Key"] = uuid.uuid4().hex
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        for left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                    return reply.read()
            except urllib.error.HTTPError as error:
                raise RuntimeError(f"{self.address}: {message_of(error)}") from None
            except (OSError, http.client.HTTPException) as error:
                if left == 0:
                    why = getattr(error, "reason", error)
                    raise RuntimeError(f"{self.address}: no server answers ({why}); start atelier serve") from None

    def ask(self, method, path, value=None):
        return json.loads(self.bytes_of(method, path, value))


def message_of(error):
    try:
        return json.loads(error.read())["error"]["message"]
    except (ValueError, KeyError):
        return f"it answers {error.code}"


def parse_loras(text):
    """"style:0.8, light" as the server takes it."""
    loras = []
    for part in filter(None, (part.strip() for part in text.replace("\n", ",").split(","))):
        name, _, strength = part.partition(":")
        loras.append({"name": name.strip(), "strength": float(strength or 1)})
    return loras


def to_urls(images):
    """Pictures [B, H, W, 3 or 4] in [0, 1], as data: URLs of PNG."""
    for image in images:
        data = io.BytesIO()
        Image.fromarray((image.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()).save(data, "PNG")
        yield "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def to_frames(data):
    """A picture, or the frames of a clip, [B, H, W, 3] in [0, 1]."""
    frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(Image.open(io.BytesIO(data)))]
    return torch.from_numpy(np.stack(frames)).float() / 255


class AtelierServe:
    CATEGORY = "atelier"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "make"
    DESCRIPTION = "Pictures, or the frames of clips, made by `atelier serve`. 0 and empty fields leave it to the server."

    @classmethod
    def INPUT_TYPES(cls):
        size = {"default": 0, "min": 0, "max": MOST_PIXELS, "step": 8}
        return {
            "required": {
                "server": ("STRING", {"default": home()}),
                "prompt": ("STRING", {"multiline": True}),
                "negative_prompt": ("STRING", {"multiline": True}),
                "width": ("INT", size),
                "height": ("INT", size),
                "steps": ("INT", {"default": 0, "min": 0, "max": 1000}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 0xFFFFFFFFFFFFFFFF, "control_after_generate": True}),
                "count": ("INT", {"default": 1, "min": 1, "max": 64}),
                "loras": ("STRING", {"default": "", "tooltip": "name:strength, between commas"}),
                "settings": ("STRING", {"default": "{}", "multiline": True,
                                        "tooltip": "JSON of any other settings and inputs of the model"}),
            },
            "optional": {
                "images": ("IMAGE",),
                "images_input": ("STRING", {"default": "", "tooltip": "which input takes the images; empty: the usual one"}),
            },
        }

    def make(self, server, prompt, negative_prompt, width, height, steps, seed, count, loras, settings, images=None,
             images_input=""):
        server = Server(server)
        table = server.ask("GET", "/v1/inputs")
        request = {"prompt": prompt, "negative_prompt": negative_prompt, "width": width, "height": height,
                   "num_inference_steps": steps}
        request = {name: value for name, value in request.items() if value or name == "prompt"}
        request |= {"seed": seed, "num_images": count, "previews": 4, "format": "webp" if table["clips"] else "png"}
        if loras.strip():
            request["loras"] = parse_loras(loras)
        if images is not None:
            row = self.image_input(table, images_input)
            urls = list(to_urls(images))
            request[row["name"]] = urls if row["list"] else urls[0]
        job = self.wait(server, server.ask("POST", "/v1/jobs", request | json.loads(settings or "{}")))
        return (torch.cat([to_frames(server.bytes_of("GET", file["url"])) for file in job["files"]]),)

    def image_input(self, table, name):
        rows = {row["name"]: row for row in table["inputs"] if row["kind"] == "image"}
        # What has to be given comes first, then what the picture begins from.
        usual = sorted(rows.values(), key=lambda row: (not row["required"], not row.get("starts", False)))
        row = rows.get(name) if name else next(iter(usual), None)
        if row is None:
            raise RuntimeError(f"images_input: {table['model']} takes images as {', '.join(rows) or 'no input'}")
        return row

    def wait(self, server, job):
        """The job once it is over, with its progress shown meanwhile. An interrupt cancels it."""
        path, previews, bar = f"/v1/jobs/{job['id']}", 0, None
        try:
            while job["state"] in ("queued", "running"):
                comfy.model_management.throw_exception_if_processing_interrupted()
                time.sleep(LOOK_EVERY_S)
                job = server.ask("GET", path)
                if job["steps"]:
                    bar = bar or comfy.utils.ProgressBar(job["steps"])
                    shown = None
                    if job["previews"] > previews:
                        previews = job["previews"]
                        shown = ("JPEG", Image.open(io.BytesIO(server.bytes_of("GET", f"{path}/preview"))), None)
                    bar.update_absolute(job["step"], job["steps"], shown)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a server that is gone
                server.ask("POST", f"{path}/cancel")
            raise
        if job["state"] != "done":
            raise RuntimeError(f"{server.address}: {job['error'] or 'the job was cancelled'}")
        return job


NODE_CLASS_MAPPINGS = {"AtelierServe": AtelierServe}
NODE_DISPLAY_NAME_MAPPINGS = {"AtelierServe": "Atelier serve"}
