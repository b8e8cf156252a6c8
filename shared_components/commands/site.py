"""`surgfl site init FOLDER`: examine a hospital's folder, ask for the rest, and write a checked site.yaml.

`surgfl site endo700k FOLDER` writes a file for each of nine data sets; `surgfl site gynsurg FOLDER` for each fold.
"""

import argparse
from pathlib import Path
from shlex import quote

from shared_components.commands._describe import FILE, add_description, describe
from shared_components.commands.check_data import check
from shared_components.common.arguments import between
from shared_components.common.counted import counted
from shared_components.data.endo700k import BEFORE, PARTS, left_out_videos, site_config
from shared_components.data.gynsurg_folds import fold_sites
from shared_components.data.readers import gynsurg
from shared_components.data.samples import SampleSpec
from shared_components.data.site import SiteError
from shared_components.data.site_file import write_sites

HELP = "write site.yaml for a hospital's own data, Endo700k or GynSurg"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser("init", help="describe a folder of labelled frames: ask, write site.yaml, check the data")
    init.add_argument("folder", type=Path, metavar="FOLDER", help="folder with images and masks")
    init.add_argument("--out", type=Path, metavar="FILE", help=f"output file; default: FOLDER/{FILE}")
    init.add_argument("--force", action="store_true", help="replace an existing file")
    add_description(init)
    add = verbs.add_parser("endo700k", help="write a site.yaml for each data set of Endo700k").add_argument
    add("folder", type=Path, metavar="FOLDER", help=f"folder with some of {', '.join(PARTS)}")
    add("--out", type=Path, required=True, metavar="FOLDER", help="output folder for <site>/site.yaml")
    add("--before", choices=BEFORE, required=True, help="task whose test videos are left out")
    add("--validation", type=int, default=1, metavar="N", help="validation videos per data set; default: 1")
    add = verbs.add_parser("gynsurg", help="write a site.yaml for each fold of GynSurg").add_argument
    add("folder", type=Path, metavar="FOLDER", help="the folder GynSurg_Action_3sec")
    add("--tables", type=Path, required=True, metavar="FOLDER", help="folder with df_action.csv and the other tables")
    add("--out", type=Path, required=True, metavar="FOLDER", help="output folder for <kind>-fold-<n>/site.yaml")
    add("--kind", choices=gynsurg.KINDS, help="kind of clips; default: all that exist")
    add("--validation", type=float, default=0.2, metavar="SHARE", help="share of training patients; default: 0.2")


def run(args: argparse.Namespace) -> int:
    """Write the file and check it; 1: correct the site, 130: interrupted. A ValueError writes nothing."""
    return {"endo700k": _endo700k, "gynsurg": _gynsurg, "init": _init}[args.verb](args)


def _endo700k(args: argparse.Namespace) -> int:
    names = [site for site in PARTS if (args.folder / site).is_dir()]
    if not names:
        raise SiteError(f"{args.folder}: has none of the folders {', '.join(PARTS)}; name each data set's folder so")
    parts = [site_config(site, args.folder / site, before=args.before, validation=args.validation) for site in names]
    for file, part in zip(write_sites(args.out, parts), parts, strict=True):
        print(f"{file}: {part['dataset']}, {counted(len(part['split']['train']), 'video')} to train on")
    if missing := [site for site in PARTS if site not in names]:
        print(f"missing: {', '.join(missing)}")
    print(f"next: surgfl check-data {args.out}; left out of Cholec80: {', '.join(left_out_videos(args.before))}")
    return 0


def _gynsurg(args: argparse.Namespace) -> int:
    between("site gynsurg", "--validation", args.validation, 0, 0.9)
    sites = list(fold_sites(args.folder, args.kind, args.tables, validation=args.validation))
    for file, (site, missing) in zip(write_sites(args.out, [site for site, _ in sites]), sites, strict=True):
        print(f"{file}: {', '.join(f'{split} {len(videos)}' for split, videos in site['split'].items())} clips")
        if missing:
            print(f"  left out: {counted(len(missing), 'clip')} of the table, missing here, such as {missing[0]}")
    print(f"next: surgfl check-data {args.out}")
    return 0


def _init(args: argparse.Namespace) -> int:
    out = args.out or args.folder / FILE
    if out.exists() and not args.force:
        raise SiteError(f"{out}: is there already; give --out another file, or replace it with --force")
    if not args.folder.is_dir():
        raise SiteError(f"{args.folder}: is not a folder; name the folder with the images and masks")
    try:
        describe(args, out)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written")
        return 130
    print(f"\n{out} was written:\n\n{out.read_text(encoding='utf-8')}")
    if check(out, SampleSpec(), full=True):
        return 1
    print(f"next: surgfl train {quote(str(out))}")
    return 0
