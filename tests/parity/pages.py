"""The command lines that the pages of plugins show."""

import functools
import re
import shlex

import atelier


@functools.cache
def generating_lines(plugin):
    """The words of each line of the plugin's README that generates, behind the program's name, with the heading that it
    is below."""
    page = (atelier.REPOSITORY / "plugins" / plugin / "README.md").read_text(encoding="utf-8")
    lines = []
    for section in page.split("\n## ")[1:]:
        for block in re.findall(r"```sh\n(.*?)```", section, re.S):
            for line in re.findall(r"^atelier (generate .*?)(?=^atelier |\Z)", block, re.S | re.M):
                lines.append((section.split("\n")[0], shlex.split(line.replace("\\\n", " "))))
    return lines
