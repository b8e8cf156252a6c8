"""What the documents' commands become before a test runs them: all of it stands here, and nowhere else.

A command that no line of `SMALLER` matches is run as it is printed. The jobs' own sizes become those of `JOBS`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

SMALLER: tuple[tuple[str, str, str], ...] = (
    (r"<address of this repository>", r"{origin}", "a repository that holds this Makefile"),
    (
        r"^make (install|demo|check|test|test-all|bench|supply-chain|prod-test)$",
        r"make -n \1",
        "minutes to an hour: make's own dry run prints what it would do",
    ),
    (
        r"^(python -m evidence.(benchmarks.robustness|benchmarks.leakage|production)) .*$",
        r"\1 --help",
        "a quarter of an hour and more",
    ),
    (r"^source \.venv/bin/activate$", r"true", "the test's own environment is active"),
    (r"/data/", r"{data}/", "where the test has made such files"),
    (r"(nvflare simulator .* -n 3)\b", r"\1 -t 3", "a process per site instead of one per task: the same bits"),
    (
        r"^surgfl compare --preset",
        r"python {plan} compare --sites {data}/sites --held-out hospital-d "
        r"--server {data}/simulated/site.yaml --preset",
        "hours: everything up to the first run is done, see plan.py",
    ),
    (
        r"--scale paper",
        r"--scale quick --seeds 1 --rounds 1 --iterations 1 --batch-size 1 --size 32x64 --jobs 1",
        "weeks on two cores",
    ),
    (r"-m pytest -k", r'-m pytest tests/methods tests/reporting/test_methods.py -m "not slow" -k', "half an hour"),
    (
        r"(bundle run --config_file \S+/train.yaml --site_config \S+(?:[\s\\]+--start \S+)?)"
        r"(?:[\s\\]+--training#\S+ \S+)*",
        r"\1 --training#rounds 1 --training#iterations 1 --training#batch_size 1 --training#height 32 "
        r"--training#width 64",
        "minutes, or without options days, on two cores",
    ),
    (
        r"--size 96x128:6000 --size 192x256:3000",
        r"--size 64x64:1 --size 64x96:1 --batch-size 2 --looks rose",
        "an hour and a half",
    ),
    (
        r"^(kits/\S+/startup/start\.sh)$",
        r"test -x \1",
        "parties that stay until they are stopped; evidence/production starts them",
    ),
    (r"--frames 16 --videos 3,1,1", r"--frames 2 --videos 1,1,1 --height 64 --width 96", "a minute"),
)
"""(pattern, replacement, why the command is not run as printed), applied in this order."""

JOBS = {
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
    """Give every job below a folder the sizes of `JOBS`."""
    for path in folder.glob("*/app/config/config_fed_server.json"):
        config = json.loads(path.read_text())
        settings = config["workflows"][0]["args"]
        settings["rounds"] = JOBS["rounds"]
        for key in ("training", "synthetic"):
            settings[key] = {**settings.get(key, {}), **JOBS[key]}
        own = settings.get("arguments", {})
        settings["arguments"] = {**own, **{k: v for k, v in JOBS["arguments"].items() if k in own}}
        path.write_text(json.dumps(config, indent=2))
