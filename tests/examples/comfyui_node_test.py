"""The node of examples/comfyui_node, loaded as ComfyUI loads it, makes pictures of a server."""
import importlib.util
import io
import os
import pathlib
import shutil
import sys
import tempfile
import types
import unittest
from unittest import mock

import example  # first: it skips the test without numpy and Pillow

try:
    import torch
except ImportError:
    print("skipped: torch is missing")
    sys.exit(77)

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

import serving  # noqa: E402

SHAPES = example.EXAMPLES / "shapes"
CLIPS = example.EXAMPLES / "moving_shapes"
PROMPT = "a red circle on a white ground"


class Interrupted(BaseException):
    """As comfy.model_management has it."""


class Comfy:
    """What the node uses of ComfyUI."""

    def __init__(self):
        self.progress = []  # (value, total, size of the preview)
        self.check = lambda: None

    def bar(self, total):
        def update(value, total=None, preview=None):
            self.progress.append((value, total, preview and preview[1].size))
        return types.SimpleNamespace(update_absolute=update)

    def modules(self):
        comfy, utils, management = map(types.ModuleType, ("comfy", "comfy.utils", "comfy.model_management"))
        utils.ProgressBar = self.bar
        management.throw_exception_if_processing_interrupted = lambda: self.check()
        comfy.utils, comfy.model_management = utils, management
        return {module.__name__: module for module in (comfy, utils, management)}


def load(comfy):
    sys.modules.update(comfy.modules())
    spec = importlib.util.spec_from_file_location("atelier_serve", example.EXAMPLES / "comfyui_node/__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Unanswered(unittest.TestCase):

    def test_a_request_that_gets_no_answer_is_sent_again_under_one_key(self):
        node, keys, errors = load(Comfy()), [], [TimeoutError("slow"), ConnectionResetError("gone")]

        def urlopen(request, timeout):
            keys.append(request.headers["Idempotency-key"])
            if errors:
                raise errors.pop(0)
            return io.BytesIO(b'{"id": "job_a"}')
        with mock.patch("urllib.request.urlopen", urlopen):
            self.assertEqual({"id": "job_a"}, node.Server("http://a").ask("POST", "/v1/jobs", {}))
            self.assertEqual((3, 1), (len(keys), len(set(keys))))
            errors += [TimeoutError("slow")] * 3
            with self.assertRaisesRegex(RuntimeError, "http://a: no server answers .slow.; start atelier serve"):
                node.Server("http://a").ask("POST", "/v1/jobs", {})
            self.assertEqual(2, len(set(keys)))


class Node(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="atelier_node_")))
        shutil.copy(SHAPES / "recolor.safetensors", folder / "recolor.safetensors")
        cls.server = cls.enterClassContext(serving.Served(SHAPES / "model", key="node's key", lora_dir=folder))
        os.environ["ATELIER_API_KEY"] = "node's key"
        os.environ["ATELIER_SERVER"] = cls.server.url

    def setUp(self):
        self.comfy = Comfy()
        self.module = load(self.comfy)
        self.node = self.module.NODE_CLASS_MAPPINGS["AtelierServe"]()

    def fields(self, **given):
        """What ComfyUI calls the node with: the defaults of its fields, and what is given."""
        types_of = self.node.INPUT_TYPES()
        fields = {name: kind[1].get("default", "") for name, kind in types_of["required"].items()}
        return fields | {"server": self.server.url, "prompt": PROMPT, "steps": 3, "width": 64, "height": 96} | given

    def make(self, **given):
        (images,) = getattr(self.node, self.node.FUNCTION)(**self.fields(**given))
        return images

    def newest(self):
        return self.server.ask("GET", "/v1/jobs")["jobs"][0]

    def test_it_gives_the_pictures_of_the_server(self):
        images = self.make(seed=2**64 - 2, count=2)
        job = self.newest()
        self.assertEqual((2, 96, 64, 3), tuple(images.shape))
        self.assertEqual([2**64 - 2, 2**64 - 1], [file["seed"] for file in job["files"]])
        for image, file in zip(images, job["files"]):
            expected = np.asarray(Image.open(io.BytesIO(self.server.bytes(file["url"]))))
            np.testing.assert_array_equal(expected, (image * 255).round().to(torch.uint8).numpy())
        values = [value for value, _, _ in self.comfy.progress]
        self.assertEqual((sorted(values), 6, {6}), (values, values[-1], {total for _, total, _ in self.comfy.progress}))

    def test_pictures_loras_and_settings_are_sent(self):
        plain = self.make(seed=1)
        start = torch.rand(2, 96, 64, 3, generator=torch.Generator().manual_seed(0))
        self.assertFalse(torch.equal(plain, self.make(seed=1, loras="recolor:1.5")))
        self.assertEqual([{"name": "recolor", "strength": 1.5}], self.newest()["settings"]["loras"])
        changed = self.make(seed=1, images=start, settings='{"denoising_strength": 0.34, "solver": "unipc"}')
        self.assertFalse(torch.equal(plain, changed))
        self.assertEqual("unipc", self.newest()["settings"]["solver"])

    def test_mistakes_name_the_server_and_the_field(self):
        for field, given in {"width": {"width": 65}, "images_input": {"images": plain_images(), "images_input": "sky"},
                             "recolour": {"loras": "recolour"}}.items():
            with self.assertRaisesRegex(RuntimeError, field):
                self.make(**given)
        with self.assertRaisesRegex(RuntimeError, "no server answers"):
            self.make(server="http://127.0.0.1:9")

    def test_an_interrupt_cancels_the_job(self):
        def interrupt():
            jobs = self.server.ask("GET", "/v1/jobs")["jobs"]
            if jobs and jobs[0]["state"] == "running" and jobs[0]["step"] > 0:
                raise Interrupted
        self.comfy.check = interrupt
        with self.assertRaises(Interrupted):
            self.make(width=512, height=512, steps=200)
        self.assertEqual("cancelled", self.server.finished(self.newest()["id"])["state"])

    def test_previews_are_shown(self):
        self.make(width=256, height=256, steps=60)
        self.assertTrue(any(size for _, _, size in self.comfy.progress), self.comfy.progress)

    def test_clips_are_batches_of_frames(self):
        with serving.Served(CLIPS / "model", plugin="wan", key="node's key") as server:
            asked = dict(server=server.url, width=0, height=0, steps=2, settings='{"num_frames": 5}')
            with self.assertRaisesRegex(RuntimeError, "asks for its key"):
                self.make(**asked)  # a server that the environment does not name is not told it
            with mock.patch.dict(os.environ, ATELIER_SERVER=server.url):
                frames = self.make(**asked)
        self.assertEqual((5, 3), (frames.shape[0], frames.shape[3]))


def plain_images():
    return torch.zeros(1, 16, 16, 3)


if __name__ == "__main__":
    unittest.main()
