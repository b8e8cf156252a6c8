"""`surgfl secure-kit KIT`: restrict a startup kit to what SurgFL's jobs need."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from shared_components.flare.deployment.certificates import SOON, certificate_problem, expiry_time
from shared_components.flare.deployment.kits import find_kit, refuse_open, secure

HELP = "restrict a startup kit to SurgFL's jobs, classes, rights and outgoing data"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kit", type=Path, metavar="KIT", help="folder with 'startup' and 'local'")
    parser.add_argument("--allow-custom-code", action="store_true", help="allow code in jobs, with your rights")
    metrics = parser.add_mutually_exclusive_group()
    text = "write metrics for Prometheus to this folder, such as node_exporter's textfile folder"
    metrics.add_argument("--metrics", type=_folder, metavar="FOLDER", help=text)
    metrics.add_argument("--no-metrics", dest="metrics", action="store_const", const=Path(), help="write no metrics")
    parser.add_argument("--gpus", type=_count, metavar="N", help="GPUs of each job, in a kit of nvflare deploy prepare")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the kit is not restricted")


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; give 0 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Restrict the kit and list the changes; 1 if the certificate is invalid. A ValueError writes nothing."""
    kit = find_kit(args.kit)
    if args.check:
        refuse_open(kit)
        return 0
    outside = certificate_problem(kit)
    changed = secure(kit, allow_custom_code=args.allow_custom_code, metrics=args.metrics, gpus=args.gpus)
    print("\n".join(changed) or f"{kit.folder}: all is in place")
    if changed:
        print("It takes effect at the next start of this party.")
    until = expiry_time(kit)
    soon = "; ask for a renewed kit" if until - datetime.now(UTC) < SOON else ""
    print(f"{kit.folder}: {outside}" if outside else f"Its certificate is valid until {until:%Y-%m-%d}{soon}.")
    return int(bool(outside))
