"""Training scripts as they are published, on files of the published names, shapes and places that have no values."""
import json
import re
import shlex

import program
import published_sizes
from tiny_run import FolderTest

KEYS = program.REPOSITORY / "tests/data/keys"


def published_shapes(keys):
    """The tensors of a published file, block ranges written out."""
    shapes = {}
    for line in (KEYS / f"{keys}.txt").read_text().splitlines()[1:]:
        name, shape = line.split("\t")
        blocks = re.search(r"\{(\d+)\.\.(\d+)\}", name)
        numbers = range(int(blocks[1]), int(blocks[2]) + 1) if blocks else [0]
        for number in numbers:
            shapes[name.replace(blocks[0], str(number)) if blocks else name] = [
                int(n) for n in shape.split("x") if n]
    return shapes


def write_published(path, keys):
    published_sizes.write_holes(path, published_shapes(keys))


def of_one_process(words):
    """What each process of `atelier launch ... -- train ...` is told."""
    return words[:1] + words[words.index("--") + 1:] if words[1] == "launch" else words


class ScriptTest(FolderTest):
    """Lines that are pasted behind `atelier`, in a folder with models and the launcher's file `config`."""

    plugin = config = ""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program.write_launcher_file(cls.root, cls.config)

    def run_program(self, *words, code=0):
        return program.run(*words, code=code, cwd=self.root, ATELIER_MODEL_BASE_PATH=str(self.root / "models"))

    def plan(self, line):
        """Pastes a line, and plans what comes back."""
        answer = self.run_program(*line).stdout
        words = of_one_process(shlex.split(answer.replace("\\\n", " ")))
        self.assertEqual(["atelier", "train", "--plugin", self.plugin], words[:4])
        json_path = self.root / "plan.json"
        self.said = self.run_program("plan", *words[1:], "--vram", "4000GiB", "--host_memory", "4000GiB",
                                     "--device_profile", "h200", "--json", json_path).stderr
        self.assertNotIn("no plan", self.said)
        return json.loads(json_path.read_text())
