"""`surgfl check-data`: read all data of sites before a job does, and list the errors."""

import argparse
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shared_components.commands import add_clip
from shared_components.common.counted import counted
from shared_components.common.progress_display import show_progress
from shared_components.data.annotations.formats import conversion_hint
from shared_components.data.check import check_site
from shared_components.data.files.images import DataError
from shared_components.data.published import compare_with_published
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import folders_without_site, load_site
from shared_components.data.site_inventory import stock_of

HELP = "read every file of the sites and list the errors"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="SITE", help="site.yaml, its folder, or folder of sites")
    add_clip(parser, "frames per clip, for tasks on clips")
    parser.add_argument("--fast", action="store_true", help="only check that the files exist")


def run(args: argparse.Namespace) -> int:
    """Print a table and the errors of each site; return 1 if a site is not ready."""
    clip = SampleSpec(frames=args.frames, interval=args.interval)
    files = [file for path in args.paths for file in _site_files(path)]
    broken = [check(path, clip, full=not args.fast, stock=True) for path in files]
    print(f"{len(broken) - sum(broken)} of {counted(len(broken), 'site')} ready")
    return int(any(broken))


def _site_files(path: Path) -> list[Path]:
    if not path.is_dir() or (path / "site.yaml").exists():
        return [path]
    if not (sites := sorted(path.glob("*/site.yaml"))) and (hint := conversion_hint(path)):
        raise SiteError(f"{path}: has no site.yaml, but {hint}, then describe them with `surgfl site init`")
    if left_out := folders_without_site(path):
        print(f"left out: {', '.join(left_out)} in {path}, without a site.yaml\n")
    return sites or [path]


def check(path: Path, clip: SampleSpec, *, full: bool, stock: bool = False) -> bool:
    """Print a site's table, its inventory if `stock`, and its errors; return whether the site is not ready."""
    try:
        site = load_site(path)
        spec = replace(clip, targets=_targets(site))
    except (SiteError, ValueError) as error:
        print(f"{error}\n")
        return True
    with show_progress(title=site.name):
        problems = check_site(site, spec, full=full)
    print(f"{site.name}: {site.dataset}, {', '.join(site.classes or spec.targets) or 'images only'}")
    print(f"  {'split':<12}{'videos':>8}{'frames':>8}{'problems':>10}{'set aside':>11}")
    for split in dict.fromkeys([*site.split, "train"]):
        of_split = [problem for problem in problems if problem.split == split]
        videos = len({part.video for part in site.split.get(split, ())})
        aside = len({problem.sample for problem in of_split if problem.quarantined})
        print(f"  {split:<12}{videos:>8}{_count(site, split, spec):>8}{len(of_split):>10}{aside:>11}")
    if site.public:
        with suppress(DataError):  # one of the problems
            print("".join(f"  {line}\n" for line in compare_with_published(site.dataset, site.root)), end="")
    if stock:
        try:
            print(*stock_of(site).lines(), sep="\n")
        except DataError as error:  # often one of the problems
            print(f"  not counted: {error}")
    if site.added is not None:
        print(f"  its training frames include those of {site.added.path}")
    for problem in dict.fromkeys(map(str, problems)):  # several clips may contain a damaged file
        print(f"  {problem}")
    print()
    return not all(problem.quarantined for problem in problems)


def _targets(site: Site) -> tuple[str, ...]:
    """Return the targets of the site's task, or all of the data set; ValueError if the task is unknown."""
    from shared_components.core.task import make_task

    if not site.task:
        return site.source.reader.targets_under(site.root)
    try:
        return make_task(site.task, classes=site.classes).spec.targets
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error


def _count(site: Site, split: str, spec: SampleSpec) -> int:
    with suppress(SiteError):  # one of the problems
        return len(samples(site, split, spec))
    return 0
