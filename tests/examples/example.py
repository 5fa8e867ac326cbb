"""Finds an example's own modules. A test that imports this module is skipped where numpy or Pillow is missing."""
import pathlib
import sys

try:
    import numpy  # noqa: F401
    import PIL  # noqa: F401
except ImportError:
    print("skipped: numpy or Pillow is missing")
    sys.exit(77)

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def use(name):
    """The folder of an example, the modules of which can be imported now."""
    sys.path.insert(0, str(EXAMPLES / name))
    return EXAMPLES / name
