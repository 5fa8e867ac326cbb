"""Many requests to one server, with changing LoRAs, sizes and cancels: every picture is that of `atelier generate`, and
memory stays, which only a long run can tell: caches fill for some hundreds of requests.

    soak_test.py [requests]
"""
import json
import pathlib
import random
import shutil
import sys
import tempfile
import unittest

import program
import serving
from tiny_run import pixels

SHAPES = program.REPOSITORY / "examples/shapes"
REQUESTS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 700
CLIENTS = 4  # whose jobs are there at once
SIZES = [(64, 64), (96, 64), (64, 96), (128, 64)]
PROMPTS = ["a red circle on a white ground", "a blue star on a green ground", "a yellow square on a black ground"]
STRENGTHS = [None, 0.25, 0.5, 1.0]
WARM = 500  # requests, after which the server has met all shapes and its caches are full
MOST_GROWTH = 8 << 20  # bytes, from then on


def resident_bytes(process):
    text = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


class Soak(unittest.TestCase):

    def test_pictures_and_memory(self):
        draw = random.Random(0)
        holder = tempfile.TemporaryDirectory(prefix="atelier_soak_")
        self.addCleanup(holder.cleanup)
        folder = pathlib.Path(holder.name)
        (folder / "loras").mkdir()
        for name in ("recolor", "again"):
            shutil.copy(SHAPES / "recolor.safetensors", folder / f"loras/{name}.safetensors")
        made = {}  # pixels by settings
        warm = WARM if REQUESTS > WARM else REQUESTS // 2
        grown_from = None
        with serving.Served(SHAPES / "model", lora_dir=folder / "loras", keep_jobs=64, max_batch=3, device="cpu",
                            threads=1) as server:
            waiting = []
            for number in range(REQUESTS):
                (width, height), strength = draw.choice(SIZES), draw.choice(STRENGTHS)
                job = {"prompt": draw.choice(PROMPTS), "width": width, "height": height, "num_inference_steps": 2,
                       "seed": draw.randrange(3)}
                loras = [] if strength is None else [{"name": draw.choice(("recolor", "again")), "strength": strength}]
                waiting.append((job, strength, server.ask("POST", "/v1/jobs", job | {"loras": loras})["id"]))
                if draw.random() < 0.1:
                    server.status("POST", f"/v1/jobs/{waiting.pop(draw.randrange(len(waiting)))[2]}/cancel")
                if len(waiting) >= CLIENTS:
                    self.take(server, waiting.pop(0), folder, made)
                if number == warm:
                    grown_from = resident_bytes(server.process.pid)
            while waiting:
                self.take(server, waiting.pop(0), folder, made)
            growth = resident_bytes(server.process.pid) - grown_from
        print(f"{REQUESTS} requests, {len(made)} different pictures, memory grew by "
              f"{growth / 2**20:.1f} MiB behind the first {warm}")
        if REQUESTS > WARM:
            self.assertLess(growth, MOST_GROWTH)
        self.compare(made, folder)

    def take(self, server, asked, folder, made):
        job, strength, name = asked
        view = server.finished(name)
        self.assertEqual("done", view["state"], view["error"])
        path = folder / "reply.png"
        path.write_bytes(server.bytes(view["files"][0]["url"]))
        key = json.dumps([job, strength])
        self.assertEqual(made.setdefault(key, pixels(path)), pixels(path))

    def compare(self, made, folder):
        keys = sorted(made)
        lines = []
        for number, key in enumerate(keys):
            job, strength = json.loads(key)
            loras = [] if strength is None else [{"name": "recolor", "strength": strength}]
            lines.append(json.dumps(job | {"loras": loras, "output": str(folder / f"{number}.png")}))
        (folder / "jobs.jsonl").write_text("\n".join(lines))
        program.run_line(program.command("generate", model_paths=json.dumps([str(SHAPES / "model")]), device="cpu",
                                         threads=1, prompts_file=folder / "jobs.jsonl", lora_dir=folder / "loras"),
                         code=0, timeout=3000)
        for number, key in enumerate(keys):
            self.assertEqual(made[key], pixels(folder / f"{number}.png"), key)


if __name__ == "__main__":
    unittest.main()
