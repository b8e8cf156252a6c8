"""`surgfl site init FOLDER`: examine a hospital's folder, ask for the rest, and write a checked site.yaml.

`surgfl site endo700k FOLDER` writes a file for each of nine data sets; `surgfl site gynsurg FOLDER` for each fold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from shared_components.commands.check_data import check
from shared_components.common.arguments import between
from shared_components.common.counted import counted
from shared_components.data.custom.description import KINDS
from shared_components.data.custom.guess_layout import Found, known_layout, look_at
from shared_components.data.custom.ids import (
    BACKGROUND,
    IGNORE,
    Value,
    class_name,
    grey,
    label_names,
    parse_ids,
    parse_value,
    written,
)
from shared_components.data.custom.survey import (
    Split,
    Values,
    counted_from_one,
    own_videos,
    propose_split,
    values_of,
    video_rate,
)
from shared_components.data.endo700k import BEFORE, PARTS, left_out, part_of
from shared_components.data.gynsurg_folds import fold_sites
from shared_components.data.readers import gynsurg
from shared_components.data.samples import SampleSpec
from shared_components.data.site import PUBLISHABLE, SPLITS, SiteError, Source, source_names
from shared_components.data.site_file import write_site, write_sites
from shared_components.inference.volumes import FOLDER as VOLUMES

HELP = "write the site.yaml of a hospital's own data, Endo700k's parts or GynSurg's folds: surgfl site init FOLDER"
FILE = "site.yaml"
DESCRIPTION = (
    "dataset", "images", "masks", "id", "name", *SPLITS, "frame_interval", "rate", "first_frame", "partly_labelled",
    "axes", "text", "publish",
)  # fmt: skip
"""Names of the options of `add_description` that say something of the folder."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser("init", help="look at a folder, ask what cannot be seen, write its site.yaml and check it")
    init.add_argument("folder", type=Path, metavar="FOLDER", help="where the images and masks lie")
    init.add_argument("--out", type=Path, metavar="FILE", help=f"default: FOLDER/{FILE}")
    init.add_argument("--force", action="store_true", help="replace a file that is there")
    add_description(init)
    parts = verbs.add_parser("endo700k", help="write a site.yaml for each of Endo700k's nine data sets that is there")
    parts.add_argument("folder", type=Path, metavar="FOLDER", help=f"holds {', '.join(PARTS)}, or some of them")
    parts.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="gets <site>/site.yaml")
    parts.add_argument("--before", choices=BEFORE, required=True, help="the task whose test videos are left out")
    parts.add_argument("--validation", type=int, default=1, metavar="N", help="videos of each to validate; default: 1")
    folds = verbs.add_parser("gynsurg", help="write a site.yaml for each fold of GynSurg's clips")
    folds.add_argument("folder", type=Path, metavar="FOLDER", help="GynSurg_Action_3sec")
    folds.add_argument(
        "--tables", type=Path, required=True, metavar="FOLDER", help="holds df_action.csv and the others"
    )
    folds.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="gets <kind>-fold-<n>/site.yaml")
    folds.add_argument("--kind", choices=gynsurg.KINDS, help="default: those that are there")
    folds.add_argument(
        "--validation", type=float, default=0.2, metavar="SHARE", help="training patients to validate; default: 0.2"
    )


def add_description(parser: argparse._ActionsContainer) -> None:
    """Declare the options that say what cannot be seen in a folder, or is to be otherwise."""
    parser.add_argument("--yes", action="store_true", help="ask nothing: take what is proposed")
    parser.add_argument("--dataset", choices=source_names(), metavar="NAME", help="default: what the folder looks like")
    parser.add_argument("--images", metavar="PATH", help="where images or videos lie, such as '{video}/frames'")
    parser.add_argument("--masks", metavar="PATH", help="where masks lie, such as '{video}/labels'")
    parser.add_argument(
        "--id", action="append", default=[], metavar="VALUE=NAME", help="what a value of the masks is; once for each"
    )
    parser.add_argument(
        "--name", help=f"of the site; default: the folder's, of a folder {VOLUMES} that of the one above"
    )
    for split in SPLITS:
        parser.add_argument(f"--{split}", metavar="VIDEOS", help=f"videos of split {split!r}, with commas between")
    parser.add_argument("--frame-interval", type=int, metavar="N", help="take every n-th labelled frame; default: 1")
    parser.add_argument("--rate", type=float, metavar="R", help="frames a second; default: a video file's own")
    parser.add_argument(
        "--first-frame", type=int, choices=(0, 1), help="number of a video's first frame in masks' names"
    )
    parser.add_argument(
        "--partly-labelled", action=argparse.BooleanOptionalAction, help="may images lack masks, or volumes labels?"
    )
    parser.add_argument("--axes", choices=("header", "stored"), help="of NIfTI volumes; default: as the header says")
    parser.add_argument("--text", help="a line that describes the site; it stays there unless published")
    parser.add_argument("--publish", metavar="ITEMS", help=f"of {', '.join(PUBLISHABLE)}, or none; default: style")


def run(args: argparse.Namespace) -> int:
    """Write the file and check it; 1: correct the site, 130: interrupted. A ValueError writes nothing."""
    return {"endo700k": _parts, "gynsurg": _folds, "init": _init}[args.verb](args)


def _parts(args: argparse.Namespace) -> int:
    there = [site for site in PARTS if (args.folder / site).is_dir()]
    if not there:
        raise SiteError(f"{args.folder}: holds none of the folders {', '.join(PARTS)}; name each data set's folder so")
    parts = [part_of(site, args.folder / site, before=args.before, validation=args.validation) for site in there]
    for file, part in zip(write_sites(args.out, parts), parts, strict=True):
        print(f"{file}: {part['dataset']}, {counted(len(part['split']['train']), 'video')} to train on")
    if missing := [site for site in PARTS if site not in there]:
        print(f"not there: {', '.join(missing)}")
    print(f"next: surgfl check-data {args.out}; of Cholec80 are left out: {', '.join(left_out(args.before))}")
    return 0


def _folds(args: argparse.Namespace) -> int:
    between("site gynsurg", "--validation", args.validation, 0, 0.9)
    sites = list(fold_sites(args.folder, args.kind, args.tables, validation=args.validation))
    for file, (site, missing) in zip(write_sites(args.out, [site for site, _ in sites]), sites, strict=True):
        print(f"{file}: {', '.join(f'{split} {len(videos)}' for split, videos in site['split'].items())} clips")
        if missing:
            print(f"  left out, since they are not on the disk: {len(missing)} of the table's, such as {missing[0]}")
    print(f"next: surgfl check-data {args.out}")
    return 0


def _init(args: argparse.Namespace) -> int:
    out = args.out or args.folder / FILE
    if out.exists() and not args.force:
        raise SiteError(f"{out}: is there already; give --out another file, or replace it with --force")
    if not args.folder.is_dir():
        raise SiteError(f"{args.folder}: is not a folder; name the one that holds the images and masks")
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


def describe(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Write the site.yaml of the folder ``args.folder`` by the options of `add_description`; return what it says.

    Raises:
        SiteError: Something cannot be seen and was not said, or the file cannot be written; nothing was.
    """
    config = _config(args, out, Talk(ask=sys.stdin.isatty() and not args.yes))
    write_site(out, config)
    return config


class Talk:
    """Asks at the terminal (``ask``) for values that were not given, or else takes the proposed ones."""

    def __init__(self, *, ask: bool) -> None:
        self.ask = ask

    def get(
        self, option: str, given: Any, question: str, proposed: str | None, read: Callable[[str], Any] = str
    ) -> Any:
        """Return what was given, the answer to a question or the proposal; SiteError without any of them."""
        if given is not None:
            return read(given) if isinstance(given, str) else given
        if not self.ask:
            if proposed is None:
                raise SiteError(f"{option} is not given, and nobody is there to ask: {question}; add {option}")
            return read(proposed)
        while True:
            answer = _input(f"{question}{'' if proposed is None else f' [{proposed}]'}: ") or proposed
            try:
                if answer is None:
                    raise ValueError("an answer is needed here")
                return read(answer)
            except ValueError as error:
                print(f"  {error}")


def _input(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        raise SiteError(
            "the answers ended before all was asked; give the rest as options (surgfl site init -h)"
        ) from None


def _config(args: argparse.Namespace, out: Path, talk: Talk) -> dict[str, Any]:
    folder = args.folder.resolve()
    public = None if args.images or args.masks else known_layout(folder, args.dataset)
    config: dict[str, Any] = {"name": args.name or _name_of(folder)}
    root = "." if out.resolve().parent == folder else str(folder)
    if public is not None:
        print(f"{args.folder}: {public}, a layout that is known")
        _refuse_own(args, public)
        config |= {"dataset": public, "root": root}
        reader = Source(public).reader
        videos = reader.videos(folder)
        frames = len(reader.frames(folder, videos[0]))
    else:
        described, videos, frames = _own(args, folder, talk)
        config |= {"dataset": described.pop("dataset"), "root": root, **described}
    config["split"] = _split(args, talk, config["dataset"], videos, frames)
    return config | _rest(args, talk)


def _name_of(folder: Path) -> str:
    """Return a folder's name; of what `surgfl segment --nifti` wrote, that of the results it is in."""
    above = folder.parent.name
    return above if folder.name == VOLUMES and above else folder.name


def _own(args: argparse.Namespace, folder: Path, talk: Talk) -> tuple[dict[str, Any], list[str], int]:
    found = _found(args, folder)
    videos = list(found.videos) or own_videos(folder, found)
    known = {*_given_ids(args.id, coloured=False), *label_names(folder)}
    values = values_of(folder, found, videos, known=known)
    what = "label volumes" if found.kind == "nifti" else "masks"
    print(f"{args.folder}: {counted(len(videos), 'video')} at {found.images!r}, {what} at {found.masks!r}")
    described: dict[str, Any] = {
        "dataset": found.kind,
        "images": found.images,
        "masks": found.masks,
        "ids": _ids(args, talk, values, label_names(folder)),
    }
    if values.unlabelled and _is_partly_labelled(args, talk, found, values):
        described["partly_labelled"] = True
    described |= _of_videos(args, folder, found, videos)
    if values.turned is not None and args.axes is None:
        print(
            f"note: {values.turned} says that its axes point otherwise than x, y, t; it is read as ITK-SNAP and 3D "
            "Slicer show it. If a script wrote it that did not mind the header: --axes stored"
        )
    if args.axes is not None:
        described["axes"] = args.axes
    # of volumes those without labels are counted, too
    left_out = values.unlabelled if found.kind == "nifti" and "partly_labelled" in described else 0
    return described, videos, (values.count - left_out) // max(1, len(videos))


def _found(args: argparse.Namespace, folder: Path) -> Found:
    kind = args.dataset if args.dataset in KINDS else None
    if not args.images and not args.masks:
        return look_at(folder, kind)
    if not (args.images and args.masks):
        raise SiteError("--images and --masks go together; give both, or neither")
    return Found(kind or ("nifti" if ".nii" in args.masks else "frames"), args.images, args.masks, ())


def _of_videos(args: argparse.Namespace, folder: Path, found: Found, videos: Sequence[str]) -> dict[str, Any]:
    """Return the rate of video files, and the number of the first frame in the masks' names."""
    rate = args.rate if args.rate is not None else video_rate(folder, found, videos)
    first = args.first_frame
    if first is None and found.kind == "frames":
        first = int(counted_from_one(folder, found, videos))
    return {**({"first_frame": first} if first else {}), **({} if rate is None else {"rate": rate})}


def _ids(args: argparse.Namespace, talk: Talk, values: Values, described: Mapping[int, str]) -> dict[Any, str]:
    """Return site.yaml's table of values and names: given, from a file, or asked; 0 and black are background."""
    table = _given_ids(args.id, coloured=values.coloured)
    for number, name in ({} if values.coloured else described).items():
        if number not in table:
            table[number] = class_name(name, str(number))
    zero: Value = (0, 0, 0) if values.coloured else 0
    unnamed = sorted((value for value in values.pixels if value not in table and value != zero), key=_number_first)
    if unnamed and not talk.ask:
        named = " ".join(f"--id '{written(value)}=NAME'" for value in unnamed)
        raise SiteError(f"the masks hold values that nobody has named; add {named} (or {IGNORE}, {BACKGROUND})")
    for value in unnamed:
        where = (
            f"in {values.masks[value]} of {counted(values.count, 'mask')}, {values.share(value):.2g} % of their pixels"
        )
        question = f"{written(value)} ({where}) is (a name, {BACKGROUND} or {IGNORE})"
        table[value] = talk.get("--id", None, question, None, class_name)
    parse_ids(table)
    ordered = sorted(table, key=_number_first)
    return {value if isinstance(value, int) else written(value): table[value] for value in ordered}


def _given_ids(given: Sequence[str], *, coloured: bool) -> dict[Value, str]:
    table: dict[Value, str] = {}
    for one in given:
        text, equals, name = (part.strip() for part in one.partition("="))
        if not equals:
            raise SiteError(f"--id is {one!r}; write a value and its name, such as '40=grasper' or '#ff8000=grasper'")
        value = parse_value(int(text) if text.isdecimal() else text)
        if coloured and isinstance(value, int):
            value = grey(value)
        if value in table:
            raise SiteError(f"--id gives {text} twice; keep one of them")
        table[value] = class_name(name, text)
    return table


def _number_first(value: Value) -> tuple[bool, Value]:
    return isinstance(value, tuple), value


def _is_partly_labelled(args: argparse.Namespace, talk: Talk, found: Found, values: Values) -> bool:
    """Return whether frames without a mask are left out; a volume's frame without a label may also show nothing."""
    given = args.partly_labelled
    if found.kind == "frames":
        question = f"leave out {counted(values.unlabelled, 'image')} without a mask"
        return talk.get("--partly-labelled", given, question, "yes", _yes_or_no)
    question = (
        f"{values.unlabelled} of {counted(values.count, 'frame')} without a label: still to be labelled (yes), or with "
        "nothing to see (no)"
    )
    return talk.get("--partly-labelled or --no-partly-labelled", given, question, None, _yes_or_no)


def _yes_or_no(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise ValueError("answer yes or no")
    return answer.lower().startswith("y")


def _split(args: argparse.Namespace, talk: Talk, dataset: str, videos: Sequence[str], frames: int) -> Split:
    given = {split: getattr(args, split) for split in SPLITS}
    if any(given.values()):
        return {split: _listed(text, videos) for split, text in given.items() if text}
    if dataset == "sisvse":
        raise SiteError("sisvse's sets share images, so none is proposed; give --train, --validation and --test")
    proposed = propose_split(videos, frames)
    if not talk.ask:
        return proposed
    print("proposed: " + "; ".join(f"{split} {_shown(listed)}" for split, listed in proposed.items()))
    if talk.get("--train", None, "take this split", "yes", _yes_or_no):
        return proposed
    asked = {
        split: talk.get(f"--{split}", None, f"videos of {split}, with commas between", "", lambda t: _listed(t, videos))
        for split in SPLITS
    }
    return {split: listed for split, listed in asked.items() if listed}


def _listed(text: str, videos: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if odd := [name for name in names if name not in videos]:
        raise SiteError(f"there is no video {odd[0]!r}; there are {', '.join(videos)}")
    return names


def _shown(listed: Sequence[Any]) -> str:
    return ", ".join(
        one if isinstance(one, str) else " ".join(f"{v}[{a}:{b}]" for v, (a, b) in one.items()) for one in listed
    )


def _rest(args: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    interval = talk.get(
        "--frame-interval", args.frame_interval, "take every n-th labelled frame, n", "1", _whole_from_1
    )
    text = talk.get("--text", args.text, "a line that describes the site (stays here unless published)", "")
    publish = talk.get(
        "--publish", args.publish, f"what may leave the site beside weights ({', '.join(PUBLISHABLE)}, or none)",
        "style", _items,
    )  # fmt: skip
    return {
        **({"frame_interval": interval} if interval != 1 else {}),
        **({"text": text} if text else {}),
        "publish": publish,
    }


def _whole_from_1(answer: str) -> int:
    if not answer.isdecimal() or int(answer) < 1:
        raise ValueError(f"{answer!r} is no whole number of 1 or more")
    return int(answer)


def _items(answer: str) -> list[str]:
    names = [] if answer.strip() == "none" else [name.strip() for name in answer.split(",") if name.strip()]
    if odd := [name for name in names if name not in PUBLISHABLE]:
        raise SiteError(f"--publish names {odd[0]!r}; there are {', '.join(PUBLISHABLE)}, or none")
    return names


def _refuse_own(args: argparse.Namespace, public: str) -> None:
    for option in ("id", "rate", "first_frame", "partly_labelled", "axes"):
        if getattr(args, option) not in (None, []):
            raise SiteError(
                f"--{option.replace('_', '-')} is for data of one's own, and this is {public}; leave it out, or add "
                "--dataset frames"
            )
