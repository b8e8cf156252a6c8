"""`surgfl secure-kit KIT`: restrict a startup kit to what SurgFL's jobs need."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from shared_components.flare.deployment.certificates import SOON, ends, why_outside
from shared_components.flare.deployment.kits import Kit, find_kit, refuse_open, secure

HELP = "let a startup kit run SurgFL's jobs and nothing else: its lists of classes and rights, what may leave"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kit", type=Path, metavar="KIT", help="the folder that holds 'startup' and 'local'")
    parser.add_argument(
        "--allow-custom-code", action="store_true",
        help="let jobs bring code of their own, which then runs here with this account's rights",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="change nothing; refuse a kit whose files do not restrict its processes"
    )


def run(args: argparse.Namespace) -> int:
    """Write what is missing and list the changes; 1 if the certificate is invalid. A ValueError writes nothing."""
    kit = find_kit(args.kit)
    if args.check:
        refuse_open(kit)
        return 0
    outside = why_outside(kit)
    changed = secure(kit, allow_custom_code=args.allow_custom_code)
    print("\n".join(changed) or f"{kit.folder}: all is in place")
    if changed:
        print("It counts from the next start of this party.")
    return _certificate(kit, outside)


def _certificate(kit: Kit, outside: str) -> int:
    """Print until when the certificate is valid, or why it is not."""
    until = ends(kit)
    soon = "; ask for a renewed kit" if until - datetime.now(UTC) < SOON else ""
    print(f"{kit.folder}: {outside}" if outside else f"Its certificate holds until {until:%Y-%m-%d}{soon}.")
    return int(bool(outside))
