"""Runs dataset_tool, the program named first: datasets opened and samples loaded by the program's own code."""
import json
import subprocess
import sys
from pathlib import Path

from tiny_run import FolderTest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "media"))
TOOL = sys.argv.pop(1)


class DatasetTool:

    def __init__(self, path):
        self.process = subprocess.Popen([path],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        text=True)

    def open(self, base, **request):
        request = {"base": str(base), **request}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the tool died on {request}")
        result = json.loads(answer)
        if "error" in result:
            raise RuntimeError(result["error"])
        return result

    def close(self):
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        assert code == 0, f"the tool ended with {code}"


class DatasetTest(FolderTest):
    """A folder for each test, and one tool for all."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tool = DatasetTool(TOOL)
        cls.addClassCleanup(cls.tool.close)
