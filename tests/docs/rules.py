"""How a block of each language is found in a document, made smaller, and executed in a copy of the repository."""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from shared_components.cli import build_parser
from shared_components.core.bundle import load_bundle, needs_square_frames
from shared_components.core.card import Metric
from shared_components.core.method import load_method
from shared_components.core.task import check_tasks, choose_task
from shared_components.data.check import check_site
from shared_components.data.files.inventory import Inventory, LeftOut
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job
from shared_components.federation.setup import limits
from shared_components.flare.deployment.job_files import write_jobs
from shared_components.inference.doubtful import warnings
from shared_components.inference.out_of_distribution import Likeness
from shared_components.inference.visible import Stretch
from shared_components.reporting.tensorboard import progress_line
from shared_components.weights.shipping.recipe import read_real

FENCE = re.compile(r"^(?P<marks>`{3,}|~{3,})\s*(?P<language>\S*)\s*(?P<note>.*)$")


@dataclass(frozen=True)
class Block:
    """One block; ``note`` is what follows the language: the path of a file, or a word for the rule."""

    document: str
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {f'{self.language} {self.note}'.strip() or 'an indented block'}"


def blocks_of(path: Path, name: str) -> list[Block]:
    """Return a document's blocks in order; ``name`` is what the document is called in errors."""
    return [Block(name, start + 1, *rest) for start, *rest in _found(path.read_text(encoding="utf-8").splitlines())]


def prose_of(path: Path) -> str:
    """Return a document without its blocks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = {n for start, _, _, text in _found(lines) for n in range(start, start + text.count("\n") + 2)}
    return "\n".join(line for number, line in enumerate(lines) if number not in inside)


def _found(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence:
            end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == fence["marks"])
            yield number, fence["language"], fence["note"].strip(), _joined(lines[number + 1 : end])
            number = end
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield number, "", "", _joined(lines[number:end])
            number = end
        number += 1


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


IN_TUTORIAL = "nvflare simulator nvflare_jobs/pfedsis -w ws -c hospital-a,hospital-b -t 2"
SMALLER: tuple[tuple[str, str, str], ...] = (
    (r"<address of this repository>", r"{origin}", "a repository that holds this Makefile"),
    (r"^make (install|demo|check|test|test-all|test-flare-versions|lock|bench|supply-chain|prod-test)$", r"make -n \1",
     "minutes to an hour: make's own dry run prints what it would do"),
    (r"^make weights ", r"make -n weights ", "days"),
    (r"^pip install nvflare==.*$", r"true", "the environment of all tests would get another FLARE"),
    (r"^(python -m evidence.(benchmarks.robustness|benchmarks.leakage|production)) .*$", r"\1 --help",
     "a quarter of an hour and more"),
    (r"^source \.venv/bin/activate$", r"true", "the test's own environment is active"),
    (r"/data/", r"{data}/", "where the test has made such files"),
    (r"((?:pfedsis|lg_fedavg) -w ws|job\.py pfedsis) -n 3\b", r"\1 -n 2", "two sites take two thirds of the time"),
    (rf"^{IN_TUTORIAL} +# named sites, .*$", r"true", "docs/tutorials/first-federation.md runs this very command"),
    (r"(nvflare simulator .* -n ([23]))\b", r"\1 -t \2", "a process per site instead of one per task: the same bits"),
    (r"^surgfl compare --preset",
     r"python {plan} compare --sites {data}/sites --held-out hospital-d "
     r"--server {data}/simulated/site.yaml --preset",
     "hours: everything up to the first run is done, see plan.py"),
    (r"--scale paper",
     r"--scale quick --seeds 1 --rounds 1 --iterations 1 --batch-size 1 --size 32x64 --jobs 1", "weeks on two cores"),
    (r"^\.venv/bin/python -m pytest -k",
     r'python -m pytest tests/methods tests/federation/test_fixed.py -m "not slow" -k', "half an hour"),
    (r"(bundle run --config_file \S+/train.yaml --site_config \S+(?:[\s\\]+--start \S+)?)"
     r"(?:[\s\\]+--training#\S+ \S+)*",
     r"\1 --training#rounds 1 --training#iterations 1 --training#batch_size 1 --training#height 32 "
     r"--training#width 64", "minutes, or without options days, on two cores"),
    (r"--size 96x128:6000 --size 192x256:3000", r"--size 64x64:1 --size 64x96:1 --batch-size 2 --looks rose",
     "an hour and a half"),
    (r"--size 96x96:4500", r"--size 64x64:1 --batch-size 2 --looks rose", "half an hour"),
    (r"^(kits/\S+/startup/start\.sh)$", r"test -x \1",
     "parties that stay until they are stopped; evidence/production starts them"),
    (r"^python3\.11 -m venv .*$|^pip install --require-hashes .*$",
     "true",
     "gigabytes of a network; the image of deployment/docker is made of the same file"),
    (r"^python -m pip wheel .* && (cp .*)$", r"\1", "a quarter of a minute; tests/test_wheel.py makes it"),
    (r"^docker build .*$|^SURGFL_KIT=\S+ SURGFL_DATA=\S+ docker compose .*$",
     r"test -f $docker/Dockerfile -a -f $docker/compose.yaml", "no test has containers"),
    (r"^(?:SURGFL_SITE_CONFIG=\S+ )?nvflare poc .*$|^for party in .* \$POC.*$|^surgfl job submit .* \$POC.*$",
     "true", "FLARE's own ports and folder; tests/production/test_kits.py runs the whole block in others"),
    (r"^chown -R 10001 ", r"chown -R $(id -u) ", "root's"),
    (r"^(surgfl train .*)$", r"\1 --steps 1 --size 32x64 --batch-size 1", "minutes"),
    (r"--height 192 --width 256 --seed 587$", r"--height 64 --width 96 --seed 587", "half a minute"),
    (r"^  score \$hospital (?:received|alone) (\S+)$", r"  test -f \1", "a process of MONAI for each file"),
    (r"for hospital in hospital-a hospital-b", r"for hospital in hospital-b", "again"),
    (r" --evaluations (received|alone)=\S+", r"", "which are left out"),
    (r"--box (\w+=)?[\d,]+", r"--box \g<1>8,8,24,16", "the test's video is 64 pixels wide"),
    (r"--frames 16 --videos 3,1,1", r"--frames 2 --videos 1,1,1 --height 64 --width 96", "a minute"),
)  # fmt: skip
"""(pattern, replacement, why the command is not run as printed), applied in this order."""

JOBS: dict[str, Any] = {
    "rounds": 1,
    "training": {"height": 32, "width": 64, "batch_size": 1, "iterations": 1},
    "synthetic": {"frames_per_video": 2, "videos": [1, 1, 1], "height": 64, "width": 96},
    "arguments": {"sensitivity_images": 1},
}
"""What replaces a job's own settings: of `arguments` only those that it has, of `synthetic` its tasks stay."""


def smaller(text: str, **places: object) -> str:
    """Return a block of commands as it is run; ``places`` fill the replacements' braces."""
    for pattern, replacement, _ in SMALLER:
        for name, place in places.items():
            replacement = replacement.replace(f"{{{name}}}", str(place))
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def shrink_jobs(folder: Path) -> None:
    """Give every job of a folder's `jobs.yaml`, and those that a document adds to it, the sizes of `JOBS`."""
    path = folder / "jobs.yaml"
    described = yaml.safe_load(path.read_text())
    common, small = described["all"], {key: value for key, value in JOBS.items() if key != "arguments"}
    described["all"] = common | small | {"training": common["training"] | JOBS["training"]}
    for row in described["jobs"].values():
        own = row.get("arguments", {})
        row |= {"arguments": own | {key: value for key, value in JOBS["arguments"].items() if key in own}}
        row |= {"synthetic": row.get("synthetic", {}) | JOBS["synthetic"]}
        if sizes := row.get("training"):
            square = needs_square_frames(row.get("bundle", common["bundle"]))
            sides = {"width": JOBS["training"]["height"]} if square else {}
            row |= {"training": sizes | JOBS["training"] | sides}
    path.write_text(yaml.safe_dump(described, sort_keys=False))
    write_jobs(folder)


HERE = Path(__file__).resolve().parent
LONGEST = 600  # seconds of one block


class Sandbox:
    """A copy of the repository in which a document is followed, block by block."""

    def __init__(self, root: Path, *, data: Path, origin: Path, programs: Path) -> None:
        """Follow in ``root``; of ``programs`` are the commands that it has, all others of the environment."""
        self.root, self.data = root, data
        self.sites: list[Site] = []
        self._places = {"data": data, "origin": origin, "plan": HERE / "plan.py"}
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SURGFL_")}
        self.variables = {**kept, "PATH": path, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self._python = programs / "python"
        self._worker: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()

    def execute(self, block: Block) -> None:
        """Execute a block by the rule of its language; a block that has none fails."""
        assert block.language in RULES, f"{block}: there is no rule for this; rules are for {', '.join(RULES)}"
        RULES[block.language](self, block)

    def run(self, block: Block) -> None:
        """Run commands with bash, as printed but for `SMALLER`."""
        commands = smaller(block.text, **self._places)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=self.root, env=self.variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: exit status {done.returncode} of\n{commands}\n{done.stdout[-4000:]}"

    def python(self, block: Block) -> None:
        """Write a block that is a file, execute any other: all of a document's in one namespace, in order."""
        if block.note:
            self._write(block)
            return
        if self._worker is None:
            self._worker = subprocess.Popen(
                [self._python, HERE / "worker.py"], cwd=self.root, env=self.variables, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"code": block.text, "name": str(block)}) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        assert answer, f"{block}: the process that executes the document's Python is gone"
        assert not (error := json.loads(answer)), f"{block}:\n{error}"

    def load(self, block: Block) -> None:
        """Load every document of a block of YAML as a site.yaml to be checked later, or one file by its name."""
        if Path(block.note).name == limits.FILE:
            path = Path(smaller(block.note, **self._places))
            path.write_text(block.text, encoding="utf-8")
            limits.read_limits(path)
            return
        if block.note == "real.yaml":
            self._write(block)
            assert read_real(self.root / block.note).choose
            return
        for number, part in enumerate(smaller(block.text, **self._places).split("---\n")):
            path = self.data / f"line-{block.line}-{number}" / "site.yaml"
            if block.note:
                path = Path(smaller(block.note, **self._places))
            path.parent.mkdir(exist_ok=True)
            path.write_text(part)
            self.sites.append(load_site(path))

    def build(self, block: Block) -> None:
        """Build the job that a block of JSON describes, with its bundle, tasks and method."""
        job = Job.from_json(json.loads(block.text))
        check_tasks(job.open_bundle().tasks)
        load_method(job.method, **job.arguments)

    def look(self, block: Block) -> None:
        """Find every path of a tree of files, or compare a line with what a run or a prediction prints.

        A layout of a data set is generated from its reader: tests/docs/test_site.py compares it.
        """
        if block.note == "tree":
            missing = [path for path in paths_in(block.text) if not list(self.root.glob(path))]
            assert not missing, f"{block}: not there: {missing}"
        elif block.note != "layout":
            pattern = ".+?".join(map(re.escape, block.text.strip().split("...")))
            printed = [a_line_of_a_run(), Likeness(1.6, 1.1, frames=4).warning, an_inventory(), a_doubtful_stretch()]
            assert any(re.fullmatch(pattern, line) for line in printed), f"{block}: none of {printed}"

    def find_program(self, block: Block) -> None:
        """Find what a unit of systemd starts, with the kits of the document in /srv."""
        unit = ConfigParser()
        unit.read_string(block.text)
        assert (self.root / unit["Service"]["ExecStart"].removeprefix("/srv/")).is_file(), block

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


RULES: dict[str, Callable[[Sandbox, Block], None]] = {
    "sh": Sandbox.run, "python": Sandbox.python, "yaml": Sandbox.load, "json": Sandbox.build, "text": Sandbox.look,
    "ini": Sandbox.find_program,
}  # fmt: skip


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
    dice = dict.fromkeys(("shaft", "wrist", "clasper", "mean"), 0.4)
    record = {
        "round": 2, "site": "site-2", "loss": {"segmentation": 0.5}, "seconds": {"total": 3.0},
        "bytes": {"up": {"global": 1}, "down": {"global": 1}}, "metrics": {"dice": dice},
    }  # fmt: skip
    return progress_line(record, rounds=4, seconds_left=70.0, metric=Metric("dice", "Dice", True, "%", 100.0))


def a_doubtful_stretch() -> str:
    """Return the line for two doubtful frames in a row, of which one in 25 is looked at, 25 frames a second."""
    times = Fraction(18875, 25), Fraction(18950, 25)
    (line,) = warnings([Stretch("doubtful masks", "frame_018875", "frame_018925", *times, 3, 9.0, 18875)])
    return line


def an_inventory() -> str:
    """Return the table of a folder with frames, masks and a video without masks."""
    left_out = (
        LeftOut("images", ("unlabelled/",), "no masks of its video", 3, whole_folder=True),
        LeftOut("videos", ("unlabelled/op_9",), "without masks", 1),
    )
    used = {"videos": 4, "images": 12, "masks": 12, "classes": 3, "splits": 3}
    remarks = {"classes": "shaft, wrist, clasper", "splits": "train 2 videos, validation 1 video, test 1 video"}
    return "\n".join(Inventory(used, left_out, remarks).lines()).strip()


def refuse_command(command: str) -> str:
    """Say why a command of ours, given in running text, cannot be; nothing where it can."""
    words = command.split()[1:]
    if words[0] not in COMMANDS:
        return f"`{command}`: there is no such command"
    parser = COMMANDS[words[0]]
    if (actions := commands_of(parser)) and words[1:]:
        if words[1] not in actions:
            return f"`{command}`: {words[0]} has no action {words[1]}"
        parser = actions[words[1]]
    strange = [word for word in words if word.startswith("--") and word not in parser._option_string_actions]
    return f"`{command}`: {strange[0]} is no option" if strange else ""


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return a parser's sub-commands by name; empty where it has none."""
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


COMMANDS = commands_of(build_parser())
