"""`surgfl provision FEDERATION.yaml --out FOLDER`: make a startup kit for each party."""

import argparse
import os
import sys
from collections.abc import Sequence
from getpass import getpass
from pathlib import Path

from shared_components.commands import add_repeatable
from shared_components.common.atomic import write_text
from shared_components.flare.deployment.federation_file import EXAMPLE, Federation, load_federation
from shared_components.flare.deployment.kits import Kit

HELP = "make startup kits for a server, sites and administrators from one YAML file"
_START = "start it with startup/start.sh"
_VARIABLE = "SURGFL_CA_PASSPHRASE"
_NEXT = {
    "server": f"install SurgFL, let the others reach the port, then {_START}",
    "site": f"install SurgFL, fill in local/site.yaml, then {_START}; it needs no open port",
    "relay": f"install SurgFL next to its region's node, let the region's sites reach the port, then {_START}",
    "region": f"install SurgFL, start its relay, then {_START}; it needs no data and no open port",
    "administrator": "keep it private; it logs in with startup/fl_admin.sh",
}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FEDERATION.yaml", help="the parties of the federation")
    add("--example", type=Path, metavar="FILE", help="write an example file and exit")
    add("--out", type=Path, metavar="FOLDER", help="output folder of the kits and the certificate authority")
    add("--add", action="store_true", help="make kits only for new parties; existing kits stay valid")
    add_repeatable(parser, "--renew", "NAME", "with --add: make a new kit for a party whose certificate expires")
    add("--encrypt", action="store_true", help="encrypt the authority's key; asks for a passphrase")
    add("--passphrase-file", type=Path, metavar="FILE", help=f"file with the passphrase; or set {_VARIABLE}")


def run(args: argparse.Namespace) -> int:
    """Make the kits, and print each person's next steps; after a ValueError nothing was written."""
    if args.example is not None:
        if args.example.exists():
            raise ValueError(f"{args.example}: is there already; give another file")
        write_text(args.example, EXAMPLE.read_text(encoding="utf-8"))
        print(f"{args.example}: written; fill it in, then surgfl provision {args.example} --out kits")
        return 0
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
    if why := flare.passphrase_weakness(federation, passphrase):  # an older version encrypted the key
        key += f" For a new key its passphrase would be refused: it {why}."
    print("\n".join(_next_steps(federation, args.out.resolve(), kits, issued, key=key)))
    return 0


def _passphrase(args: argparse.Namespace, *, encrypted: bool) -> str | None:
    """Return the authority key's passphrase from a file, the environment or the terminal; None without encryption."""
    if not encrypted and not args.encrypt:
        if args.passphrase_file is not None or _VARIABLE in os.environ:
            raise ValueError("the authority's key is not encrypted; --encrypt does that, or give no passphrase")
        return None
    if args.passphrase_file is not None:
        try:
            return args.passphrase_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--passphrase-file {args.passphrase_file}: cannot be read ({error})") from error
    if _VARIABLE in os.environ:
        return os.environ[_VARIABLE]
    if not sys.stdin.isatty():
        remedy = f"give --passphrase-file, or {_VARIABLE} in the environment, or run it in a terminal, which asks"
        raise ValueError(f"the passphrase of the authority's key is missing; {remedy}")
    typed = getpass("passphrase of the authority's key: ")
    if not encrypted and getpass("the same again: ") != typed:
        raise ValueError("the two passphrases differ; nothing was written")
    return typed


def _next_steps(federation: Federation, out: Path, kits: Sequence[Kit], issued: dict, *, key: str) -> list[str]:
    if not kits:
        lines = [f"{out}: everybody in the file has a kit; no kit was written", f"{out / 'ca'}: {key}"]
        return [*lines, *_gone(federation, issued)]
    parties = [(kit.folder, issued[kit.folder.name]) for kit in kits]
    lines = [f"{f}  {p['part']} {f.name}, of {p['organisation']}, until {p['ends']}" for f, p in parties]
    lines += ["", "Give each person only their own folder, over a private channel: it contains their key."]
    lines += [f"  {part}: {what}" for part, what in _NEXT.items() if any(kit.part == part for kit in kits)]
    server = federation.server
    ports = " and ".join(str(port) for port in dict.fromkeys((server.port, server.admin_port)))
    use = "only it can add a site or renew a certificate"
    others = ", the sites of a region and its node to its relay" * bool(federation.regions)
    lines += [f"  everybody connects to {server.host}, port {ports}{others}"]
    lines += [f"  {', '.join((r.name, *r.sites))}: {r.host}, port {r.port}" for r in federation.regions]
    lines += [f"Keep {out / 'ca'} off the server and off the network, and a copy of it elsewhere: {use}. {key}"]
    return [*lines, *_gone(federation, issued)]


def _gone(federation: Federation, issued: dict) -> list[str]:
    """Return a remark about valid certificates of parties that are no longer in the file."""
    from shared_components.flare.provision import parties_of

    if not (gone := sorted(set(issued) - set(parties_of(federation)))):
        return []
    return [
        f"{', '.join(gone)}: no longer in the file; the certificate stays valid until it ends, so keep the site "
        "out by disable_client in FLARE's console (docs/how-to/deploy.md)"
    ]
