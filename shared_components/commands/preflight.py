"""`surgfl preflight`: report the classes, the code and the outgoing data of a job before a site accepts it."""

import argparse
from pathlib import Path

HELP = "show the classes of a job that a site refuses, its code, and the data that would leave the site"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB_FOLDER_OR_METHOD", help="FLARE job folder, or a method's name")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument("--kit", type=Path, help="startup kit to check: its allow-list, and whether it allows code")
    lists.add_argument("--allow-list", type=Path, metavar="FILE", help="resources.json, or an allow-list")
    parser.add_argument("--site", type=Path, metavar="SITE_YAML", help="site.yaml to check: data, consent and limits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outgoing data to this file")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if the job would be refused."""
    from shared_components.commands import _preflight

    return _preflight.run(args)
