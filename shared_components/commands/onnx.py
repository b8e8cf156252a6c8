"""`surgfl onnx`: write a model as ONNX, for programs without PyTorch."""

import argparse
from pathlib import Path

from shared_components.commands import add_model, open_model

HELP = "export a model to ONNX with dynamic batch, height and width, and compare it with PyTorch"
_SMALL = (64, 96)  # compared in addition to the model's size


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="output file; default: <bundle>.onnx")


def run(args: argparse.Namespace) -> int:
    """Export, compare, and report the largest difference; after a ValueError there is no file."""
    from shared_components.networks.onnx_file import OnnxError, export_onnx

    path, model = open_model(args)
    if (kind := model.task.card.kind) != "segmentation":
        raise OnnxError(f"checkpoint {path} has learnt {kind}; models of segmentation can be exported")
    out, frames = args.out or Path(f"{args.bundle}.onnx"), model.task.spec.frames
    print(f"exporting {path}, which takes a while", flush=True)
    sizes = [_SMALL, model.size]
    height, width = model.size
    names = ",".join(model.task.card.outputs)
    facts = {"classes": names, "height": str(height), "width": str(width), "checkpoint": path.name}
    shares = export_onnx(model.network, out, sizes=sizes, frames=frames, facts=facts)
    clip = f"{frames}, " if frames > 1 else ""
    print(f"{out}: image (B, {clip}3, H, W) -> pred (B, {model.task.channels}, H, W), H and W multiples of 32")
    for (height, width), share in zip(sizes, shares, strict=True):
        print(f"at {height}x{width} it differs from PyTorch by {share:.0e} of the largest logit")
    return 0
