"""Runs the commands of README and docs, all of them, in the order in which they stand.

usage: docs_test.py SOURCE BUILD [PAGE...]    without a page: all but README.md

The ```sh blocks of a page are one script, run in a folder that holds what the pages speak of: a model below models/, a
dataset in data/, an image with a mask, two LoRAs, a file of jobs and one of settings. `atelier` is the built program;
images are made smaller and in fewer steps than the page says, and a run that has 500 steps there, or says no number of
them, has STEPS, because the model is the one of examples/shapes and the tests are short. A server is at a port that is free.
"""
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import fork_server
import program

SOURCE, BUILD = pathlib.Path(), pathlib.Path()

PAGES = ["README.md", "examples/tiny_model/README.md", "docs/adding_a_family.md", "docs/building.md", "docs/cache.md",
         "docs/checkpoints.md", "docs/datasets.md", "docs/distributed.md", "docs/file_formats.md", "docs/generate.md",
         "docs/lora.md", "docs/memory.md", "docs/numerics.md", "docs/optimizers.md", "docs/plugins.md",
         "docs/serve.md", "docs/storage.md", "docs/training.md", "examples/comfyui_node/README.md"]

# Commands that begin like this are not run here. Why, in each case:
LEFT_OUT = {
    "tools/demo": "it trains for minutes; tests/tools_test.py checks its flags",
    "tools/test": "it runs this test",
    "hf download ": "nothing is downloaded for a test",
    "modelscope download ": "the same",
    "tools/build": "what is tested is built already",
    "HEAD=node1:29500": "tests/host/distributed/launchers_test.py runs the examples of launchers",
    "sbatch ": "the same",
    "kubectl ": "the same",
    "cmake ": "tests/plugin_template_test.py installs the SDK, and begins, builds and tests a plugin",
    "~/atelier/bin/atelier ": "the same",
    "atelier generate --plugin qwen_image --model_paths '[\"models/Qwen-Image\", \"qwen-image-Q4_K_M.gguf\"]'":
        "tests/host/train/packed_cli_test.py makes pictures of GGUF files",
    "atelier generate --plugin qwen_image --prompt \"Make it night\" --edit_image day.png":
        "tests/parity/llama_cpp_parity_test.py compares text encoders in GGUF files",
    "atelier train $M $D $L $V ": "packed_cli_test.py trains so, for longer than a page may take",
    "atelier plugin test my_family ": "the same, and tests/host/cli/reference_test.py compares numbers",
}

# The most that `atelier generate` is asked for; the model has 6 blocks.
LIMITS = {"--height": 64, "--width": 64, "--num_inference_steps": 2, "--resident_blocks": 2}
STEPS = 4
SHORT = {"-H": "--height", "-W": "--width", "-s": "--num_inference_steps"}

# What a page calls `atelier`. It asks the test's Starts for a fork, and starts the program itself where it gets none.
PROGRAM = """#!/usr/bin/env python3
import os, socket, sys
words = sys.argv[1:]
if words and words[0] == "generate":
    words = [%r.get(word, word) for word in words]
    for flag, most in %r.items():
        if flag in words:
            place = words.index(flag) + 1
            words[place] = str(min(most, int(words[place])))
        elif flag != "--resident_blocks":
            words += [flag, str(most)]
if words and words[0] == "serve":
    os.execv(%r, ["atelier"] + words + ([] if "--port" in words else ["--port", "%d"]))
begins = "--resume" not in words or "latest" in words
if words and words[0] == "train" and begins and "--max_train_steps" not in words:
    words += ["--max_train_steps", "%d"]
here, starts = os.path.dirname(__file__), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if starts.connect_ex(here + "/starts") == 0:
    line = "\\0".join([os.getcwd(), "atelier"] + words)
    socket.send_fds(starts, [line.encode()], [0, 1, 2])
    status = starts.recv(16)
    if status:
        sys.exit(int(status))
os.execv(%r, ["atelier"] + words)
"""

SETTINGS = """plugin = "qwen_image"
model_paths = ["models/Qwen-Image"]
dataset_base_path = "data"
dataset_metadata_path = "data/metadata.csv"
lora_base_model = "dit"
lora_rank = 4
"""


class Starts:
    """Makes starts of a page's commands forks of one process, while no other of them runs."""

    def __init__(self, path, environment):
        self.server = fork_server.ForkServer(BUILD / "bin/atelier", program.FORK_SERVER, environment)
        self.one = threading.Lock()
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.path.unlink()
        self.server.end()

    def accept(self):
        with self.listener, contextlib.suppress(OSError):  # at its end
            while True:
                threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()

    def answer(self, asked):
        line, files, _, _ = socket.recv_fds(asked, 1 << 16, 3)
        with asked:
            if self.one.acquire(blocking=False):
                cwd, *words = line.decode().split("\0")
                status, _ = self.server.start(words, cwd, files, 500)
                self.one.release()
                asked.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
        for file in files:
            os.close(file)


def commands_of(page):
    """The shell of a page: its blocks, without the commands of LEFT_OUT, and with STEPS for its 500 steps."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (SOURCE / page).read_text(), re.S | re.M)
    lines = "".join(blocks).replace("\\\n", "\0").splitlines()
    kept = [line for line in lines if not line.startswith(tuple(LEFT_OUT))]
    script = "\n".join(kept).replace("\0", "\\\n") + "\n"
    return re.sub(r"((--save_steps |step-)(00000)?)500\b", lambda found: found[1] + f"{STEPS:0{3 if found[3] else 1}}", script)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def write_program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Docs(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_docs_")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name) / "start"
        programs = cls.folder / "programs"
        programs.mkdir(parents=True)
        cls.ports = {"7860": free_port(), "7861": free_port()}  # what pages say, the first without saying it
        binary = str(BUILD / "bin/atelier")
        write_program(programs / "atelier", PROGRAM % (SHORT, LIMITS, binary, cls.ports["7860"], STEPS, binary))
        write_program(programs / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        write_program(programs / "srun", '#!/bin/sh\nexec "$@"\n')
        model = SOURCE / "examples/shapes/model"
        for name in ("Qwen-Image", "Qwen/Qwen-Image"):
            (cls.folder / "models" / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.folder / "models" / name).symlink_to(model)
        (cls.folder / "models/Wan2.1-T2V-1.3B-Diffusers").symlink_to(SOURCE / "examples/moving_shapes/model")
        (cls.folder / "examples").symlink_to(SOURCE / "examples")
        (cls.folder / "build").mkdir()
        (cls.folder / "build/release").symlink_to(BUILD)
        cls.write_dataset()
        cls.write_probe_inputs()
        (cls.folder / "run.toml").write_text(SETTINGS)
        (cls.folder / "jobs.jsonl").write_text('{"prompt": "a red circle", "seed": 1, "output": "circle.png"}\n')
        for name in ("house.png", "door.png"):
            shutil.copy(SOURCE / "examples/shapes/hatched/000000.png", cls.folder / name)
        cls.train_loras()

    @classmethod
    def write_dataset(cls):
        data = cls.folder / "data"
        data.mkdir()
        rows = ["image,prompt"]
        for number in range(2):
            name = f"{number:06}.png"
            shutil.copy(SOURCE / "examples/shapes/hatched" / name, data / name)
            (data / f"{number:06}.txt").write_text(f"image number {number}\n")
            rows.append(f"{name},image number {number}")
        (data / "metadata.csv").write_text("\n".join(rows) + "\n")

    @classmethod
    def write_probe_inputs(cls):
        header, data = {}, b""
        for name, shape in {"latents": [1, 16, 1, 4, 4], "sigma": [1], "prompt_embeds": [1, 5, 128]}.items():
            values = struct.pack(f"<{math.prod(shape)}f", *[0.5] * math.prod(shape))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        (cls.folder / "in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    @classmethod
    def train_loras(cls):
        cls.run_script(cls.folder, """set -e
atelier train --config run.toml --max_train_steps 1 --save_steps 1 --output_path first
cp first/step-1.safetensors style.safetensors
cp first/step-1.safetensors light.safetensors
mkdir loras
mv first/step-1.safetensors loras/style.safetensors
rm -r first
""")

    @classmethod
    def run_script(cls, folder, script):
        environment = dict(os.environ, HOME=str(folder), OMP_NUM_THREADS="1",
                           PATH=f"{folder / 'programs'}:{os.environ['PATH']}")
        with contextlib.ExitStack() as ended:
            if program.FORK_SERVER.exists():
                ended.callback(Starts(folder / "programs/starts", environment).end)
            result = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True, timeout=500,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise AssertionError(f"exit code {result.returncode}:\n{result.stdout[-4000:]}")

    def check_page(self, page):
        script = commands_of(page)
        self.assertNotRegex(script, "…|\\.\\.\\. ", "a command that leaves something out cannot be run")
        folder = self.folder.parent / page.replace("/", "_")
        shutil.copytree(self.folder, folder, symlinks=True)
        # A server that a page starts in the background ends with the page.
        traps = "trap 'echo \"failed: $BASH_COMMAND\"' ERR\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
        script = re.sub(r"\b786[01]\b", lambda port: str(self.ports[port[0]]), script)
        self.run_script(folder, traps + "set -euo pipefail\n" + script)


def add_test(page):
    name = "test_" + re.sub(r"\W", "_", page.removesuffix(".md")).lower()
    setattr(Docs, name, lambda self: self.check_page(page))


class Pages(unittest.TestCase):

    def test_no_page_is_forgotten(self):
        with_commands = [str(page.relative_to(SOURCE)) for folder in ("docs", ".")
                         for page in (SOURCE / folder).glob("*.md") if "```sh\n" in page.read_text()]
        self.assertEqual([], sorted(set(with_commands) - set(PAGES) - {"docs/commands.md"}))

    def test_what_is_left_out_stands_on_a_page(self):
        pages = "\n" + "\n".join((SOURCE / page).read_text() for page in PAGES)
        self.assertEqual([], [start for start in LEFT_OUT if "\n" + start not in pages])


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    for each in sys.argv[3:] or [page for page in PAGES if page != "README.md"]:
        add_test(each)
    del sys.argv[1:]
    unittest.main(verbosity=2)
