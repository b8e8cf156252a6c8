"""`surgfl compare`: compare methods on the same sites."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shared_components.commands import add_repeatable, parsed
from shared_components.core.training_settings import Optimizer
from shared_components.experiments.comparison import names

if TYPE_CHECKING:
    from shared_components.experiments.comparison.results import Comparison

HELP = "train several methods on the same sites and write tables, charts and a page"


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    tables = f"table or figure of a paper: {', '.join([*names.PRESETS, 'all'])}; default: %(default)s"
    what.add_argument("--preset", default="pfedsis-table1", metavar="NAME", help=tables)
    what.add_argument("--methods", metavar="A,B,...", help="methods or jobs, instead of a preset")
    add = parser.add_argument
    add("--scale", default="small", choices=names.SCALES, help="size of the runs; default: %(default)s")
    add("--seeds", default="3", metavar="N or A,B,...", help="number of seeds, or the seeds; default: 3")
    add("--sites", type=Path, metavar="DIR", help="folder with <site>/site.yaml; default: synthetic sites")
    add("--held-out", default="", metavar="SITE", help="site of --sites that never trains, or a site.yaml")
    add("--server", type=Path, metavar="FILE", help="site.yaml of the server's frames, for rows that need them")
    add("--out", type=Path, default=Path("comparison"), help="output folder; default: %(default)s")
    add("--jobs", type=int, metavar="N", help="parallel runs; default: as many as fit")
    add("--threads", type=int, default=1, help="CPU threads per run; default: %(default)s")
    add("--rounds", type=int, help="communication rounds")
    add("--iterations", type=int, help="local steps per round")
    add("--batch-size", type=int, help="batch size")
    add("--learning-rate", type=float, help="learning rate")
    add("--optimizer", choices=get_args(Optimizer), help="local optimizer; default: the bundle's")
    add("--size", metavar="HxW", help="input size of the network, multiples of 32")
    add("--bundle", default="", metavar="NAME", help="bundle of rows without their own; default: the method's")
    add_repeatable(parser, "--network", "KEY=VALUE", "network argument, or class")
    start = "initial weights: random, rendered (shipped) or a file; default: the preset's, or rendered"
    add("--start", metavar="random|rendered|PATH", help=start)
    add_repeatable(parser, "--start-of", "START=FILE", f"weights for rows that start from {', '.join(names.GIVEN)}")
    add_repeatable(parser, "--argument", "METHOD.KEY=VALUE", "argument of a method")


def run(args: argparse.Namespace) -> int:
    """Carry out the missing runs and write the tables; 1 if a run has no result. A ValueError starts nothing."""
    from shared_components.commands import _compare

    return _compare.run(args)


def compared_quietly(options: Sequence[str]) -> Comparison:
    """Carry out and write the comparison for options of the command, without printing; return it."""
    from shared_components.commands._compare import compared

    args = parsed(configure, options)
    with redirect_stdout(StringIO()):
        return compared(args)[0]
