"""`python parsed.py onnx ...`: read a command of ours as `surgfl` would, and do nothing."""

import sys

from shared_components.cli import build_parser

print(build_parser().parse_args(sys.argv[1:]))
