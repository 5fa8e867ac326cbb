"""A server on the tiny model for tests with real clients, and what `generate` makes of the same settings."""
import base64
import io

from PIL import Image

import program
import serving
from tiny_run import TinyRuns, factors, matrices, pixels, write_colors, write_tensors

SIZE = dict(width=96, height=64)
STEPS = 3


class ApiRuns(TinyRuns):
    """`server` serves the tiny model as "tiny", with the LoRA "style"; `picture` is one to begin from."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loras = cls.root / "loras"
        cls.loras.mkdir()
        layers = {name: shape for name, shape in matrices(cls.model).items() if name.endswith("to_q")}
        write_tensors(cls.loras / "style.safetensors",
                      {key: value for name, shape in layers.items() for key, value in factors(name, shape).items()})
        cls.picture = cls.root / "picture.png"
        write_colors(cls.picture, **SIZE, seed=5)
        cls.server = cls.enterClassContext(cls.serve())

    @classmethod
    def serve(cls, **flags):
        return serving.Served(cls.model, **{**dict(plugin="qwen_image", device="cpu", threads=1, served_name="tiny",
                                                   lora_dir=cls.loras, max_steps=1000), **flags})

    def generated(self, **flags):
        """The pictures that `generate` makes, as their compressed pixels."""
        flags = {**self.on_model, **SIZE, "num_inference_steps": STEPS, "output": self.dir / "generated.png", **flags}
        said = program.run_line(program.command("generate", **flags), code=0, cwd=self.dir)
        return [pixels(self.dir / name) for name in said.stdout.split()]

    def pixels_of(self, text):
        """The same of a PNG file in base64."""
        path = self.dir / "of_reply.png"
        path.write_bytes(base64.b64decode(text))
        return pixels(path)

    def jobs(self, **wanted):
        """The views of jobs with these values, the newest first."""
        return [job for job in self.server.ask("GET", "/v1/jobs")["jobs"]
                if all(job[name] == value for name, value in wanted.items())]

    def state_of(self, job):
        return self.server.ask("GET", f"/v1/jobs/{job}")["state"]


def mask(left, right, transparent=False):
    """A PNG file as large as `picture`, of two halves; where it is transparent, of two opacities."""
    image = Image.new("L", (SIZE["width"], SIZE["height"]), right)
    image.paste(left, (0, 0, SIZE["width"] // 2, SIZE["height"]))
    if transparent:
        whole = Image.new("RGBA", image.size, (90, 90, 90, 255))
        whole.putalpha(image)
        image = whole
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
