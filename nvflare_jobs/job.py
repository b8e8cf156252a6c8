"""Run a job of this folder in FLARE's simulator, or export it, through FLARE's Python interface.

    python nvflare_jobs/job.py pfedsis -n 3                    # site-1, site-2, site-3, all at a time
    python nvflare_jobs/job.py pfedsis -c hospital-a,hospital-b -t 1
    python nvflare_jobs/job.py pfedsis --export jobs           # jobs/pfedsis, for `nvflare simulator`
    python nvflare_jobs/job.py pfedsis --export jobs --strict  # the same for sites that let no job bring code

The result equals `nvflare simulator nvflare_jobs/pfedsis -n 3`. FLARE empties the job's workspace, `ws/pfedsis`, at
every start. The run's state stays in `ws-state`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nvflare.job_config.api import FedJob

from shared_components.federation.messages import FederationError
from shared_components.flare.deployment.job_folder import JobFolderError
from shared_components.flare.deployment.submission import production_copy
from shared_components.flare.workspaces import is_held, refuse_unusable

JOBS = Path(__file__).resolve().parent
STATE_VARIABLE = "SURGFL_STATE"
FLARES = {"local", "startup", "server"}  # what a workspace holds as soon as FLARE has begun one


class JobError(ValueError):
    """Invalid argument on the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run or export a job; return 2 and print one sentence if that fails."""
    args = parser().parse_args(argv)
    try:
        job = job_of(args.job)
        if args.strict and not args.export:
            raise JobError("--strict goes with --export; give both")
        return export(job, args.export, strict=args.strict) if args.export else simulate(job, args)
    except (JobError, JobFolderError) as error:
        print(f"job.py: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Declare the arguments."""
    made = argparse.ArgumentParser(prog="job.py", description="Run or export a job of nvflare_jobs/.")
    made.add_argument("job", metavar="METHOD", help=f"one of {', '.join(names())}")
    sites = made.add_mutually_exclusive_group()
    sites.add_argument("-n", type=int, metavar="N", help="sites: site-1 to site-N; default: 3")
    sites.add_argument("-c", metavar="A,B,...", help="sites by name")
    made.add_argument("-t", type=int, metavar="N", help="sites at a time; default: all")
    made.add_argument("-w", type=Path, default=Path("ws"), metavar="FOLDER", help="of workspaces; default: ws")
    made.add_argument("--export", type=Path, metavar="FOLDER", help="write FOLDER/<METHOD> instead of running it")
    made.add_argument(
        "--strict", action="store_true", help="export it without the empty app/custom, which strict sites refuse"
    )
    return made


def names() -> list[str]:
    """Return the jobs of this folder."""
    return sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


def job_of(name: str) -> FedJob:
    """Return a job as its folder describes it.

    Raises:
        JobError: There is none of that name.
    """
    if name not in names():
        raise JobError(f"there is no job {name!r} in {JOBS}; the jobs are {', '.join(names())}")
    folder = JOBS / name
    meta = json.loads((folder / "meta.json").read_text())
    job = FedJob(name=meta["name"], min_clients=meta["min_clients"])
    for side, to, add_file in (
        ("server", job.to_server, job.add_file_to_server),
        ("client", job.to_clients, job.add_file_to_clients),
    ):
        to(json.loads((folder / "app" / "config" / f"config_fed_{side}.json").read_text()))
        add_file(str(folder / "app" / "custom" / ".gitkeep"))  # the simulator may then use installed classes
    return job


def export(job: FedJob, folder: Path, *, strict: bool) -> int:
    """Write a job folder, or the copy of it that strict sites take.

    Raises:
        JobError: Another thing of that name is there.
    """
    if (folder / job.name).exists():
        raise JobError(f"--export: {folder / job.name} is there already; give another folder, or move it away")
    try:
        if strict:
            production_copy(JOBS / job.name, folder)
        else:
            job.export_job(str(folder))
    except OSError as error:
        raise JobError(f"--export: {folder} cannot be written to ({error}); give another folder") from error
    print(f"{folder / job.name}: written")
    return 0


def simulate(job: FedJob, args: argparse.Namespace) -> int:
    """Run a job in the simulator; return 1 if it failed.

    Raises:
        JobError: An argument cannot be used; nothing was touched.
    """
    sites = args.c.split(",") if args.c else [f"site-{i}" for i in range(1, (3 if args.n is None else args.n) + 1)]
    threads = len(sites) if args.t is None else args.t
    if not sites or not all(sites) or len(set(sites)) < len(sites):
        raise JobError(f"-n is {args.n}, -c is {args.c}; give at least one site, each another name")
    if FLARES & set(sites):
        raise JobError(
            f"-c is {args.c}; {', '.join(sorted(FLARES))} are FLARE's own folders, so name the sites otherwise"
        )
    if not 1 <= threads <= len(sites):
        raise JobError(f"-t is {args.t}; give a number from 1 to {len(sites)}, how many sites there are")
    root = args.w.expanduser().resolve()
    refuse_workspace(root / job.name)
    os.environ.setdefault(STATE_VARIABLE, f"{root}-state")
    print(f"{job.name}: FLARE's simulator starts in {root / job.name}", flush=True)
    from nvflare.recipe import SimEnv  # late: it takes --export out of the command line for itself

    try:
        SimEnv(clients=sites, num_threads=threads, workspace_root=str(root)).deploy(job)
    except RuntimeError:  # the run has already printed the reason
        return 1
    return 0


def refuse_workspace(folder: Path) -> None:
    """Refuse a workspace that FLARE cannot use, or that holds what it would remove.

    Raises:
        JobError: FLARE cannot use its path, another launch works there, or it is a folder of something else.
    """
    try:
        refuse_unusable(folder)
    except FederationError as error:
        raise JobError(f"-w: {error}") from error
    if is_held(folder):
        raise JobError(f"-w: another launch works in {folder}; wait for its end, or give another folder")
    if not folder.exists() or (folder / "server" / "simulate_job").is_dir():
        return
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} <= FLARES:
        raise JobError(
            f"-w: {folder} is no workspace of FLARE's simulator, and FLARE would empty it; move it away or give another"
        )


if __name__ == "__main__":
    sys.exit(main())
