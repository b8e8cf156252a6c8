"""`surgfl provision FEDERATION.yaml --out FOLDER`: a startup kit for everybody who takes part."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from shared_components.atomic import write_text
from shared_components.deployment.federation_file import EXAMPLE, Federation, load_federation
from shared_components.deployment.kits import Kit

HELP = "make startup kits for a server, sites and administrators from one small YAML"
START = "start it with startup/start.sh"
NEXT = {
    "server": f"install SurgFL, let the others reach the port, then {START}",
    "site": f"install SurgFL, fill in local/site.yaml, then {START}; it needs no open port",
    "administrator": "keep it private; it logs in with startup/fl_admin.sh",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FEDERATION.yaml", help="who takes part")
    parser.add_argument("--example", type=Path, metavar="FILE", help="write an example to fill in, and end")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of the kits and of their authority, 'ca'")
    parser.add_argument(
        "--add",
        action="store_true",
        help="make kits for those in the file who have none; all others stay valid",
    )
    parser.add_argument(
        "--renew",
        action="append",
        default=[],
        metavar="NAME",
        help="make another kit for a party whose certificate ends; may be repeated, and goes with --add",
    )


def run(args: argparse.Namespace) -> int:
    """Make the kits, and say what each person does next.

    Raises:
        ValueError: Something in the file or the folder cannot be; nothing was written.
    """
    if args.example is not None:
        return _write_example(args.example)
    if args.file is None or args.out is None:
        raise ValueError("give FEDERATION.yaml and --out FOLDER, or --example FILE to write an example")
    if args.renew and not args.add:
        raise ValueError("--renew goes with --add; give both")
    federation = load_federation(args.file)
    from shared_components.flare import provision as flare

    if args.add:
        kits = flare.add(federation, args.out, renew=tuple(args.renew))
    else:
        kits = flare.provision(federation, args.out)
    issued = flare.read_issued(args.out)["parties"]
    print("\n".join(_said(federation, args.out.resolve(), kits, issued)))
    return 0


def _write_example(path: Path) -> int:
    if path.exists():
        raise ValueError(f"{path}: is there already; give another file")
    write_text(path, EXAMPLE.read_text(encoding="utf-8"))
    print(f"{path}: written; fill it in, then surgfl provision {path} --out kits")
    return 0


def _said(federation: Federation, out: Path, kits: Sequence[Kit], issued: dict) -> list[str]:
    if not kits:
        return [f"{out}: everybody in the file has a kit; nothing was written"]
    said = []
    for kit in kits:
        who, party = kit.folder.name, issued[kit.folder.name]
        said.append(f"{kit.folder}  {party['part']} {who}, of {party['organisation']}, until {party['ends']}")
    said += [
        "",
        "Give each person their own folder alone, by a way that nobody else reads: it holds their key.",
    ]
    said += [f"  {part}: {what}" for part, what in NEXT.items() if any(kit.part == part for kit in kits)]
    server = federation.server
    ports = " and ".join(str(port) for port in dict.fromkeys((server.port, server.admin_port)))
    said.append(f"  everybody connects to {server.host}, port {ports}")
    said.append(
        f"Keep {out / 'ca'} private and a copy of it elsewhere: it alone can add a site or renew a certificate."
    )
    known = {kit.folder.name for kit in kits} | {site.name for site in federation.sites}
    known |= {person.email for person in federation.administrators} | {server.host}
    if gone := sorted(name for name in issued if name not in known):
        said.append(
            f"{', '.join(gone)}: no longer in the file; the certificate stays valid until it ends, so keep the site "
            "out by disable_client in FLARE's console (docs/deploy.md)"
        )
    return said
