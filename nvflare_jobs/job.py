"""Run a job of this folder in FLARE's simulator, or export it, through FLARE's Python interface.

    python nvflare_jobs/job.py pfedsis -n 3                    # site-1, site-2, site-3, all at a time
    python nvflare_jobs/job.py pfedsis -c hospital-a,hospital-b -t 1
    python nvflare_jobs/job.py pfedsis --tracking mlflow       # scores of each site in MLflow, see SURGFL_TRACKING
    python nvflare_jobs/job.py pfedsis --export jobs           # jobs/pfedsis, for `nvflare simulator`
    python nvflare_jobs/job.py pfedsis --export jobs --strict  # the same for sites that let no job bring code

The result equals `nvflare simulator nvflare_jobs/pfedsis -n 3`. FLARE empties the job's workspace, `ws/pfedsis`, at
every start. The run's state stays in `ws-state`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_components.flare.deployment.job_folder import JobFolderError
from shared_components.flare.deployment.submission import production_copy

JOBS = Path(__file__).resolve().parent


class JobError(ValueError):
    """Invalid argument on the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run or export a job; return 2 and print one sentence if that fails."""
    args = parser().parse_args(argv)
    try:
        job = job_of(args.job)
        if args.strict and not args.export:
            raise JobError("--strict goes with --export; give both")
        if args.tracking and args.export:
            raise JobError("--tracking goes without --export: set SURGFL_TRACKING at the job's server")
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
    made.add_argument(
        "--tracking", default="", metavar="TRACKER", help="send each site's scores to mlflow, wandb or tensorboard"
    )
    made.add_argument("--export", type=Path, metavar="FOLDER", help="write FOLDER/<METHOD> instead of running it")
    made.add_argument(
        "--strict", action="store_true", help="export it without the empty app/custom, which strict sites refuse"
    )
    return made


def names() -> list[str]:
    """Return the jobs of this folder."""
    return sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


def job_of(name: str) -> Path:
    """Return a job's folder.

    Raises:
        JobError: There is none of that name.
    """
    if name not in names():
        raise JobError(f"there is no job {name!r} in {JOBS}; the jobs are {', '.join(names())}")
    return JOBS / name


def export(job: Path, folder: Path, *, strict: bool) -> int:
    """Write a job folder, or the copy of it that strict sites take.

    Raises:
        JobError: Another thing of that name is there.
    """
    if (folder / job.name).exists():
        raise JobError(f"--export: {folder / job.name} is there already; give another folder, or move it away")
    try:
        copy = production_copy(job, folder, marked=not strict)
    except OSError as error:
        raise JobError(f"--export: {folder} cannot be written to ({error}); give another folder") from error
    print(f"{copy}: written")
    return 0


def simulate(job: Path, args: argparse.Namespace) -> int:
    """Run a job in the simulator; return 1 if it failed.

    Raises:
        JobError: An argument cannot be used; nothing was touched.
    """
    sites = args.c.split(",") if args.c else [f"site-{i}" for i in range(1, (3 if args.n is None else args.n) + 1)]
    threads = len(sites) if args.t is None else args.t
    if not sites or not all(sites) or len(set(sites)) < len(sites):
        raise JobError(f"-n is {args.n}, -c is {args.c}; give at least one site, each another name")
    if not 1 <= threads <= len(sites):
        raise JobError(f"-t is {args.t}; give a number from 1 to {len(sites)}, how many sites there are")
    root = args.w.expanduser().resolve()
    from nvflare.recipe import SimEnv  # late: it takes --export out of the command line for itself

    from shared_components.flare.recipe import SurgFLRecipe

    try:
        recipe = SurgFLRecipe(job, tracking=args.tracking)
        env = SimEnv(clients=sites, num_threads=threads, workspace_root=str(root))
        recipe.process_env(env)
        print(f"{job.name}: FLARE's simulator starts in {root / job.name}", flush=True)
        recipe.run(env)
    except RuntimeError:  # the run has already printed the reason
        return 1
    except ValueError as error:
        raise JobError(str(error)) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
