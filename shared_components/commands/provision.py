"""`surgfl provision FEDERATION.yaml --out FOLDER`: a startup kit for everybody who takes part."""

import argparse
import os
import sys
from collections.abc import Sequence
from getpass import getpass
from pathlib import Path

from shared_components.common.atomic import write_text
from shared_components.flare.deployment.federation_file import EXAMPLE, Federation, load_federation
from shared_components.flare.deployment.kits import Kit

HELP = "make startup kits for a server, sites and administrators from one YAML file"
START = "start it with startup/start.sh"
VARIABLE = "SURGFL_CA_PASSPHRASE"
NEXT = {
    "server": f"install SurgFL, let the others reach the port, then {START}",
    "site": f"install SurgFL, fill in local/site.yaml, then {START}; it needs no open port",
    "administrator": "keep it private; it logs in with startup/fl_admin.sh",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FEDERATION.yaml", help="the parties of the federation")
    parser.add_argument("--example", type=Path, metavar="FILE", help="write an example file and exit")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="output folder of the kits and the certificate authority"
    )
    parser.add_argument("--add", action="store_true", help="make kits only for new parties; existing kits stay valid")
    parser.add_argument(
        "--renew",
        action="append",
        default=[],
        metavar="NAME",
        help="with --add: make a new kit for a party whose certificate expires; repeatable",
    )
    parser.add_argument("--encrypt", action="store_true", help="encrypt the authority's key; asks for a passphrase")
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"file with the passphrase; alternative: environment variable {VARIABLE}",
    )


def run(args: argparse.Namespace) -> int:
    """Make the kits, and print each person's next steps; after a ValueError nothing was written."""
    if args.example is not None:
        return _write_example(args.example)
    if args.file is None or args.out is None:
        raise ValueError("give FEDERATION.yaml and --out FOLDER, or --example FILE to write an example")
    if args.renew and not args.add:
        raise ValueError("--renew goes with --add; give both")
    federation = load_federation(args.file)
    from shared_components.flare import provision as flare

    if args.add:
        passphrase = _passphrase(args, encrypted=flare.needs_passphrase(args.out))
        kits = flare.add(federation, args.out, renew=tuple(args.renew), passphrase=passphrase)
    else:
        passphrase = _passphrase(args, encrypted=False)
        kits = flare.provision(federation, args.out, passphrase=passphrase)
    issued = flare.read_issued(args.out)["parties"]
    key = "Its key is encrypted." if flare.needs_passphrase(args.out) else "Its key is not encrypted (--encrypt)."
    if why := flare.weakness(federation, passphrase):  # of a key that an older version encrypted
        key += f" For a new key its passphrase would be refused: it {why}."
    print("\n".join(_next_steps(federation, args.out.resolve(), kits, issued, key=key)))
    return 0


def _passphrase(args: argparse.Namespace, *, encrypted: bool) -> str | None:
    """Return the authority key's passphrase from the file, the environment or the terminal; None without encryption.

    Raises:
        ValueError: There is none where one is needed, or one where the key is not encrypted.
    """
    if not encrypted and not args.encrypt:
        if args.passphrase_file is not None or VARIABLE in os.environ:
            raise ValueError("the authority's key is not encrypted; --encrypt does that, or give no passphrase")
        return None
    if args.passphrase_file is not None:
        return _first_line(args.passphrase_file)
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    if not sys.stdin.isatty():
        raise ValueError(
            f"the passphrase of the authority's key is missing; give --passphrase-file, or {VARIABLE} in the "
            "environment, or run it in a terminal, which asks"
        )
    typed = getpass("passphrase of the authority's key: ")
    if not encrypted and getpass("the same again: ") != typed:
        raise ValueError("the two passphrases differ; nothing was written")
    return typed


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--passphrase-file {path}: cannot be read ({error})") from error


def _write_example(path: Path) -> int:
    if path.exists():
        raise ValueError(f"{path}: is there already; give another file")
    write_text(path, EXAMPLE.read_text(encoding="utf-8"))
    print(f"{path}: written; fill it in, then surgfl provision {path} --out kits")
    return 0


def _next_steps(federation: Federation, out: Path, kits: Sequence[Kit], issued: dict, *, key: str) -> list[str]:
    if not kits:
        lines = [f"{out}: everybody in the file has a kit; no kit was written", f"{out / 'ca'}: {key}"]
        return [*lines, *_gone(federation, issued)]
    lines = []
    for kit in kits:
        who, party = kit.folder.name, issued[kit.folder.name]
        lines.append(f"{kit.folder}  {party['part']} {who}, of {party['organisation']}, until {party['ends']}")
    lines += ["", "Give each person their own folder alone, by a way that nobody else reads: it holds their key."]
    lines += [f"  {part}: {what}" for part, what in NEXT.items() if any(kit.part == part for kit in kits)]
    server = federation.server
    ports = " and ".join(str(port) for port in dict.fromkeys((server.port, server.admin_port)))
    lines.append(f"  everybody connects to {server.host}, port {ports}")
    lines.append(
        f"Keep {out / 'ca'} off the server and off the network, and a copy of it elsewhere: it alone can add a site or "
        f"renew a certificate. {key}"
    )
    return [*lines, *_gone(federation, issued)]


def _gone(federation: Federation, issued: dict) -> list[str]:
    """Say whose certificates stay valid though the file has them no longer."""
    known = {site.name for site in federation.sites} | {person.email for person in federation.administrators}
    if not (gone := sorted(name for name in issued if name not in known | {federation.server.host})):
        return []
    return [
        f"{', '.join(gone)}: no longer in the file; the certificate stays valid until it ends, so keep the site "
        "out by disable_client in FLARE's console (docs/how-to/deploy.md)"
    ]
