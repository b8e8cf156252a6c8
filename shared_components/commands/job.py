"""`surgfl job`: submit a job to a provisioned federation, watch it, stop it and fetch its result."""

import argparse
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shared_components.commands import add_repeatable
from shared_components.common.counted import counted
from shared_components.common.sanitise import printable
from shared_components.reporting.tables import Table, as_text

if TYPE_CHECKING:
    from shared_components.flare.admin import Administrator, Listed

HELP = "submit, list, watch, stop and fetch jobs of a federation"
CODES = {"finished": 0, "failed": 1, "stopped": 3, "lost": 4}
_LOST = "the server ended while it ran; submit it again with --resume to go on with its run"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="ACTION")
    submit = verbs.add_parser("submit", help="submit a job and print its id")
    submit.add_argument("job", metavar="METHOD_OR_FOLDER", help="name of a shipped job, or a job folder")
    resume = "continue the run of an earlier job; without a value, the newest run; RUN@20: after its round 20"
    submit.add_argument("--resume", nargs="?", const="latest", metavar="JOB_ID or RUN", help=resume)
    add_repeatable(submit, "--set", "KEY=VALUE", "job setting, such as rounds=5 or training.iterations=10")
    submit.add_argument("--watch", action="store_true", help="watch the job until it ends")
    verbs.add_parser("list", help="list all jobs and their states")
    watch = verbs.add_parser("watch", help="watch a job; exit status 0: finished, 1: failed, 3: stopped, 4: lost")
    stop = verbs.add_parser("stop", help="stop a job for all sites")
    fetch = verbs.add_parser("fetch", help="download the report and models of a finished job")
    fetch.add_argument(
        "--out", type=Path, default=Path("."), metavar="FOLDER", help="output; default: the current folder"
    )
    for verb in (watch, stop, fetch):
        verb.add_argument("job", metavar="JOB_ID", help="id of the job")
    for verb in verbs.choices.values():
        verb.add_argument("--admin", type=Path, required=True, metavar="KIT", help="administrator's startup kit")


def run(args: argparse.Namespace) -> int:
    """Carry out the action; return the exit code of a watched job's final state."""
    from shared_components.flare.admin import connect
    from shared_components.flare.deployment.submission import find_job, parse_settings, write_submission

    if args.verb == "submit":
        with tempfile.TemporaryDirectory(prefix="surgfl-") as folder:
            settings = parse_settings(args.set)
            job = write_submission(find_job(args.job), Path(folder), settings=settings, resume=args.resume)
            with connect(args.admin) as administrator:
                job_id = administrator.submit(job)
                print(job_id, flush=True)
                return _watch(administrator, job_id, args.admin) if args.watch else 0
    with connect(args.admin) as administrator:
        if args.verb == "watch":
            return _watch(administrator, args.job, args.admin)
        if args.verb == "list":
            _list(administrator.jobs())
        elif args.verb == "stop":
            administrator.stop(args.job)
            print(f"{args.job} is being stopped")
        else:
            _print_files(administrator.fetch(args.job, args.out))
    return 0


def _list(jobs: "list[Listed]") -> None:
    print(as_text(table(jobs)) if jobs else "no jobs")
    if lost := [job.id for job in jobs if job.state == "lost"]:
        print(f"\nlost: {', '.join(lost)}: {_LOST}")


def _print_files(folder: Path) -> None:
    print(f"result  {folder}")
    for name in ("report/index.html", "run.json", "models/*/*.safetensors"):
        for path in sorted(folder.glob(f"**/surgfl_result/{name}")):
            print(f"        {path.relative_to(folder)}")


def _watch(administrator: "Administrator", job: str, kit: Path) -> int:
    for line in administrator.watch(job):
        print(printable(line), flush=True)
    state = administrator.job(job).state
    why = _LOST if state == "lost" else administrator.why(job) if state == "failed" else ""
    if state == "finished":
        print(f"result  surgfl job fetch {job} --admin {shlex.quote(str(kit))} --out results")
    print(f"surgfl: job {job} {state}{f': {printable(why)}' if why else ''}")
    return CODES[state]


def table(jobs: "list[Listed]") -> Table:
    rows = tuple((job.id, job.name, job.state, job.submitted, job.submitter) for job in jobs)
    return Table(counted(len(jobs), "job"), ("id", "job", "state", "submitted", "by"), rows, labels=5)
