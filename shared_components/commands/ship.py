"""`surgfl ship`: score weights of a pre-training on unseen data, and put them into bundles."""

import argparse
from pathlib import Path

from shared_components.commands import add_repeatable
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.looks import LOOKS

HELP = "put weights of `surgfl pretrain` or of a job into bundles, with scores and a card"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    run = "folder of a pre-training or of a finished job, such as ws-state/fl_endovit/latest"
    add("pretrained", type=Path, metavar="RUN", help=run)
    data = "training data of a job's sites, such as 'nine rendered sites'; required for a job"
    add("--data", default="", metavar="WORDS", help=data)
    seen = "site whose training videos the weights have seen; tests on them are refused"
    add_repeatable(parser, "--seen", "site.yaml", seen, Path)
    add("--bundle", action="append", required=True, metavar="NAME", help="bundle to write; repeatable")
    add_repeatable(parser, "--before", "RUN", "pre-training before RUN, newest first", Path)
    add_repeatable(parser, "--real", "NAME=site.yaml", "real site to score on, and its name in the card")
    add("--looks", default=",".join(LOOKS), metavar="A,B,...", help="looks to score on; default: all named looks")
    add("--unseen", type=int, default=8, metavar="N", help="unseen looks of each family to score on; default: 8")
    add("--families", default=",".join(FAMILIES), metavar="A,B", help="families of unseen looks; default: %(default)s")
    add("--choice", type=Path, metavar="FILE", help="choice.json of `surgfl weights`, for the card")
    add("--videos", type=int, default=2, help="rendered videos per look; default: 2")
    add("--frames", type=int, default=6, help="frames per rendered video; default: 6")


def run(args: argparse.Namespace) -> int:
    """Score and ship; all bundles get the same file. After a ValueError no bundle has changed."""
    from shared_components.commands import _ship

    return _ship.run(args)
