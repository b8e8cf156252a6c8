"""How a block of each language is executed, in a copy of the repository."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from shared_components.cli import build_parser
from shared_components.core.card import Metric
from shared_components.core.method import load_method
from shared_components.core.task import check_tasks, choose_task
from shared_components.data.check import check_site
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job
from shared_components.federation.progress import progress_line
from shared_components.federation.site import limits
from shared_components.networks.bundle_config import load_bundle
from tests.docs.blocks import Block
from tests.docs.smaller import smaller

HERE = Path(__file__).resolve().parent
LONGEST = 600  # seconds of one block


class Sandbox:
    """A copy of the repository in which a document is followed, block by block."""

    def __init__(self, root: Path, *, data: Path, origin: Path) -> None:
        self.root, self.data = root, data
        self.sites: list[Site] = []
        self.executed: list[tuple[Block, str]] = []  # with what was run
        self._places = {"data": data, "origin": origin, "plan": HERE / "plan.py"}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SURGFL_")}
        self.variables = {**kept, "PATH": path, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self._worker: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that executes Python."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()

    def execute(self, block: Block) -> None:
        """Execute a block by the rule of its language; a block that has none fails."""
        assert block.language in RULES, f"{block}: there is no rule for this; rules are for {', '.join(RULES)}"
        RULES[block.language](self, block)

    def run(self, block: Block) -> None:
        """Run commands with bash, as printed but for `smaller.SMALLER`."""
        commands = smaller(block.text, **self._places)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=self.root, env=self.variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: exit status {done.returncode} of\n{commands}\n{done.stdout[-4000:]}"
        self.executed.append((block, done.stdout))

    def python(self, block: Block) -> None:
        """Write a block that is a file, execute any other: all of a document's in one namespace, in order."""
        if block.note:
            self._write(block)
            return
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, HERE / "worker.py"], cwd=self.root, env=self.variables, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"code": block.text, "name": str(block)}) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        assert answer, f"{block}: the process that executes the document's Python is gone"
        assert not (error := json.loads(answer)), f"{block}:\n{error}"
        self.executed.append((block, ""))

    def load(self, block: Block) -> None:
        """Load every document of a block of YAML as a site.yaml, its data to be checked later, or a file of limits."""
        if Path(block.note).name == limits.FILE:
            path = Path(smaller(block.note, **self._places))
            path.write_text(block.text)
            limits.read_limits(path)
            self.executed.append((block, ""))
            return
        text = smaller(block.text, **self._places)
        for number, part in enumerate(text.split("---\n")):
            path = self.data / f"line-{block.line}-{number}" / "site.yaml"
            if block.note:
                path = Path(smaller(block.note, **self._places))
            path.parent.mkdir(exist_ok=True)
            path.write_text(part)
            self.sites.append(load_site(path))
        self.executed.append((block, ""))

    def build(self, block: Block) -> None:
        """Build the job that a block of JSON describes, with its bundle, tasks and method."""
        job = Job.from_json(json.loads(block.text))
        check_tasks(job.open_bundle().tasks)
        load_method(job.method, **job.arguments)
        self.executed.append((block, ""))

    def look(self, block: Block) -> None:
        """Find every path of a tree of files, or compare a line of a run with what a run prints."""
        if block.note == "tree":
            missing = [path for path in paths_in(block.text) if not list(self.root.glob(path))]
            assert not missing, f"{block}: not there: {missing}"
        else:
            pattern = ".+?".join(map(re.escape, block.text.strip().split("...")))
            assert re.fullmatch(pattern, a_line_of_a_run()), f"{block}: {a_line_of_a_run()}"
        self.executed.append((block, ""))

    def check_sites(self) -> None:
        """Read all data of the sites that were loaded, as an enrolment would."""
        tasks = load_bundle("pvt_fpn").tasks
        for site in self.sites:
            task = choose_task(tasks, site.task, classes=site.classes, who=str(site.path))
            assert list(map(str, check_site(site, task.spec, required=("train", "validation")))) == []

    def _write(self, block: Block) -> None:
        path = self.root / block.note
        assert path.parent.is_dir() and not path.exists(), f"{block}: cannot be written there"
        path.write_text(block.text)
        self.executed.append((block, ""))


RULES: dict[str, Callable[[Sandbox, Block], None]] = {
    "sh": Sandbox.run,
    "python": Sandbox.python,
    "yaml": Sandbox.load,
    "json": Sandbox.build,
    "text": Sandbox.look,
}


def paths_in(tree: str) -> list[str]:
    """Return the paths of a tree, as patterns: what stands before two spaces, below what it is indented under."""
    found: list[str] = []
    above = ""
    for line in tree.splitlines():
        names = line.strip().split("  ")[0].split()
        inside = above if line.startswith(" ") else ""
        paths = [inside + re.sub(r"<\w+>", "*", name) for name in names]
        above = inside or (paths[0] if paths[0].endswith("/") else "")
        found += paths
    return found


def a_line_of_a_run() -> str:
    """Return what is printed when a site has answered a round of segmentation."""
    parts = ("shaft", "wrist", "clasper")
    record = {
        "round": 2,
        "site": "site-2",
        "loss": {"segmentation": 0.5},
        "metrics": {"dice": {**dict.fromkeys(parts, 0.4), "mean": 0.4}},
        "seconds": {"total": 3.0},
        "bytes": {"up": {"global": 1}, "down": {"global": 1}},
    }
    return progress_line(record, rounds=4, seconds_left=70.0, metric=Metric("dice", "Dice", True, "%", 100.0))


def refuse_command(command: str) -> str:
    """Say why a command of ours, given in running text, cannot be; nothing where it can."""
    words = command.split()[1:]
    known = commands_of(build_parser())
    if words[0] not in known:
        return f"`{command}`: there is no such command"
    parser = known[words[0]]
    if (actions := commands_of(parser)) and words[1:]:
        if words[1] not in actions:
            return f"`{command}`: {words[0]} has no action {words[1]}"
        parser = actions[words[1]]
    options = parser._option_string_actions
    strange = [word for word in words if word.startswith("--") and word not in options]
    return f"`{command}`: {strange[0]} is no option" if strange else ""


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return a parser's sub-commands by name; empty where it has none."""
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def yaml_keys(block: Block) -> set[str]:
    """Return the keys of a block of YAML."""
    return set(yaml.safe_load(block.text))
