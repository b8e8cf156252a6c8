"""`surgfl jobs`: write the folders of `nvflare_jobs/` from its `jobs.yaml`."""

import argparse

from shared_components.commands import report_generated

HELP = "generate nvflare_jobs/<name>/ from nvflare_jobs/jobs.yaml"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")


def run(args: argparse.Namespace) -> int:
    """Write the files that change and list them; ValueError if jobs.yaml is invalid, or --check finds a change."""
    from shared_components.flare.deployment.job_files import outdated_files, write_jobs
    from shared_components.flare.deployment.job_folder import jobs_folder

    folder = jobs_folder()
    report_generated(args, outdated_files(folder) if args.check else write_jobs(folder), of="jobs.yaml")
    return 0
