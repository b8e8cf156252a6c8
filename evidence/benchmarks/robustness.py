"""Measure the effect of one hostile site among five on the four honest sites, by method and attack.

    python -m evidence.benchmarks.robustness --seeds 1,2 --out robustness

Five rendered sites train from the shipped weights. After some honest rounds, the fifth site attacks in all further
rounds. The score is the mean Dice of the four honest sites' models (personal models if the method has them) on their
validation videos. `--out` saves the rows in robustness.json; rows that exist there are not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from evidence.attacks.labels import flip_site
from evidence.attacks.replies import attacked
from evidence.benchmarks.robustness_tables import BEYOND, CASES, METHODS, Case, tables
from shared_components.common.atomic import write_json
from shared_components.federation.in_process import answer, open_together
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.protocol import Answers, Ask, Conversation, conduct
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.site.runner import SiteRunner
from shared_components.networks.bundle_config import bundle_for
from shared_components.scenes.site import plan_sites, write_site

HONEST, HOSTILE = 2, 2  # rounds before the attack, and with the attack
SITES, ATTACKER = 5, "site-5"
TRAINING = {
    "height": 64, "width": 96, "batch_size": 2, "iterations": 6, "learning_rate": 5e-4, "start": "rendered",
}  # fmt: skip
SCENES = {"videos": {"train": 2, "validation": 2, "test": 1}, "frames_per_video": 6, "height": 128, "width": 160}


def render(folder: Path, seed: int) -> dict[str, Path]:
    """Write five sites with different looks, and the attacker's site with flipped labels as ``flipped``."""
    found = {}
    for plan in plan_sites(folder / "sites", sites=SITES, seed=seed):
        path = write_site(plan.folder, look=plan.look, seed=plan.seed, layout=plan.layout, **SCENES)
        found[plan.folder.name] = path
    found["flipped"] = flip_site(found[ATTACKER], folder / "flipped")
    return found


@dataclass
class Run:
    """An open federation in this process, and its next requests."""

    server: ServerRunner
    sites: dict[str, SiteRunner]
    conversation: Conversation
    ask: Ask

    @classmethod
    def open(cls, job: Job, sites: Mapping[str, Path], folder: Path, *, resume: bool = False) -> Run:
        """Open or resume a run, up to its first round."""
        server, runners = open_together(job, sites, folder, resume=resume)
        conversation = conduct(server)
        run = cls(server, runners, conversation, next(conversation))
        while run.ask.task == "enrol":
            run.send(answer(run.ask, runners))
        return run

    def send(self, answers: Answers) -> None:
        """Send answers to the server."""
        self.ask = self.conversation.send(answers)

    def answers(self, names: Sequence[str] | None = None) -> Answers:
        """Collect the answers of some or all sites."""
        messages = {n: m for n, m in self.ask.messages.items() if names is None or n in names}
        return answer(replace(self.ask, messages=messages), self.sites)


@dataclass(frozen=True)
class Warm:
    """A run before its first hostile round, and the honest answers of all sites to this round."""

    job: Job
    folder: Path
    sites: Mapping[str, Path]
    replies: Mapping[str, Message]
    seed: int


def warm_up(method: str, arguments: Mapping[str, Any], scenes: Mapping[str, Path], folder: Path, seed: int) -> Warm:
    """Run a method's honest rounds, and train all sites for the next round."""
    job = Job(
        name=f"robustness-{method}",
        bundle=bundle_for(method),
        method=method,
        arguments=arguments,
        training={**TRAINING, "seed": seed},
        rounds=HONEST + HOSTILE,
        min_sites=SITES - 1,
    )
    sites = {name: path for name, path in scenes.items() if name != "flipped"}
    run = Run.open(job, sites, folder)
    for _ in range(HONEST):
        run.send(run.answers())
    return Warm(job, folder, scenes, run.answers().replies, seed)


def hostile_rounds(warm: Warm, case: Case, folder: Path) -> dict[str, Any]:
    """Attack a copy of the honest run.

    Returns:
        ``dice`` of each honest site at the end, ``refused`` with the server's reasons, and ``stopped`` with the job's
        error message, if there is one.
    """
    shutil.copytree(warm.folder, folder, copy_function=os.link, symlinks=True)  # files are replaced, never modified
    sites = {name: path for name, path in warm.sites.items() if name != "flipped"}
    if case.flip:
        sites[ATTACKER] = warm.sites["flipped"]
    row: dict[str, Any] = {"dice": {}, "refused": [], "stopped": ""}
    try:
        run = Run.open(warm.job, sites, folder, resume=True)
        known = dict(warm.replies)
        if case.flip:
            known |= run.answers([ATTACKER]).replies
        while run.ask.task == "round":
            answers = Answers(known) if known else run.answers()
            known = {}
            number = run.server.state.round
            run.send(attacked(run.ask, answers, ATTACKER, case.attack, round=number, seed=warm.seed))
            for one in run.server.last_record["rejected"]:
                row["refused"].append({"round": number + 1, **one})
        finish(run)
        finals = [record for record in run.server.records if record["kind"] == "final"]
        dice = {record["site"]: record["dice"]["mean"] or 0.0 for record in finals}
        row["dice"] = {site: value for site, value in dice.items() if site != ATTACKER}
    except FederationError as error:
        row["stopped"] = str(error)
    finally:
        shutil.rmtree(folder)
    return row


def finish(run: Run) -> None:
    """Finish all sites; otherwise a rule that needs five sites would end the job."""
    try:
        run.send(run.answers())
    except StopIteration:
        return
    raise AssertionError(f"the server asks for {run.ask.task} after the finish")


def measure(
    seed: int,
    folder: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    only: Sequence[str] = (),
    done: Callable[[str, str], bool] = lambda method, case: False,
    keep: Callable[[dict[str, Any]], None] = lambda row: None,
) -> None:
    """Run methods under their attacks with one seed; ``only`` selects attacks, ``keep`` receives each finished row."""
    scenes = render(folder, seed)
    for method in methods:
        cases = {key: case for key, case in CASES.items() if case.only in ("", method)}
        if method == list(METHODS)[-1]:
            cases |= {f"beyond_{key}": case for key, case in BEYOND.items()}
        wanted = {key: case for key, case in cases.items() if not only or key in only}
        if not (left := {key: case for key, case in wanted.items() if not done(method, key)}):
            continue
        began = time.perf_counter()
        warm = warm_up(method, METHODS[method], scenes, folder / method, seed)
        seconds = time.perf_counter() - began
        for key, case in left.items():
            began = time.perf_counter()
            row = hostile_rounds(warm, case, folder / f"{method}-{key}")
            took = time.perf_counter() - began + (seconds if key == "none" else 0.0)
            keep({"method": method, "case": key, "seed": seed, "seconds": took, **row})
        shutil.rmtree(warm.folder)


def main() -> None:
    """Measure, print the tables and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1", help="numbers, such as 1,2")
    parser.add_argument("--methods", default=",".join(METHODS), help="some of the table's, such as fedavg,krum")
    parser.add_argument("--cases", default="", help="some of the attacks, such as none,sign_flip; all")
    parser.add_argument("--out", type=Path, help="folder for robustness.json; rows that it has are kept")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # warnings about refused updates: they are in the table
    file = chosen.out / "robustness.json" if chosen.out else None
    rows = json.loads(file.read_text("utf-8"))["rows"] if file and file.is_file() else []
    numbers = [int(text) for text in chosen.seeds.split(",")]
    here = {"commit": commit(), "hardware": hardware()}

    def keep(row: dict[str, Any]) -> None:
        rows.append({**row, **here})
        said = row["stopped"] or f"{100 * mean(row['dice'].values()):.1f}"
        print(f"{row['method']}, {row['case']}, seed {row['seed']}: {said} ({row['seconds']:.0f} s)", flush=True)
        if file:
            write_json(file, {"rows": rows})

    for seed in numbers:
        there = {(row["method"], row["case"]) for row in rows if row["seed"] == seed}
        with tempfile.TemporaryDirectory() as folder:
            measure(
                seed,
                Path(folder),
                methods=chosen.methods.split(","),
                only=[name for name in chosen.cases.split(",") if name],
                done=lambda method, case, there=there: (method, case) in there,
                keep=keep,
            )
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    print(f"\n{tables(rows)}\n\ncommit {commits}, seeds {chosen.seeds}, {hardware()}")


if __name__ == "__main__":
    main()
