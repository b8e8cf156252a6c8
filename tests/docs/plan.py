"""`python plan.py compare ...`: all of `surgfl compare` up to its first run; a study takes hours, tests do not."""

import sys

from shared_components.cli import build_parser
from shared_components.commands._compare import chosen, planned

args = build_parser().parse_args(sys.argv[1:])
runs = planned(args, chosen(args))
assert len({run.name for run in runs}) == len(runs) > 1
print(f"{len(runs)} runs, from {runs[0].name} to {runs[-1].name}")
