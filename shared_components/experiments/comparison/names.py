"""Names of presets, scales and initial weights, for the help of `surgfl compare`: they need no PyTorch."""

from shared_components.core.training_settings import RANDOM

PRESETS = (
    "pfedsis-table1", "pfedsis-figure2", "pfedsis-figure3", "pfedsis-table2", "pfedsis-table3", "pfedsis-table4",
    "fl-endovit-aggregation", "fl-endovit-table1", "fl-endovit-table7", "fl-endovit-table2", "fl-endovit-table3",
    "fl-endovit-table4", "fl-endovit-table5", "fl-endovit-table6-segmentation", "fl-endovit-table6-triplets",
    "fl-endovit-table6-phases", "fl-endovit-table10", "fl-endovit-table11", "fedsurg", "fedst-table2", "fedst-table3",
    "fedst-figure3", "fedst-figure4", "fedst-table4", "fedst-table5", "fedst-table6", "fedst-table7", "fedst-table8",
    "fedst-table9", "fedst-figure5", "fedst-figure6", "fedst-figure7", "surgfed-table1", "surgfed-table2",
    "surgfed-table3", "surgfed-table4", "surgfed-figure3", "surgfed-figure3-aggregated", "surgfed-figure4",
    "surgfed-efficiency",
)  # fmt: skip
SCALES = ("quick", "small", "paper")
STARTS = {RANDOM: "Random", "imagenet": "ImageNet", "centralised": "CEN-EndoViT", "federated": "FL-EndoViT"}
"""Initial weights of rows, and their names in labels."""
RESNET = "resnet"
NAMES = STARTS | {RESNET: "RN50"}
"""Initial weights with the start of the ResNet-50 baseline."""
GIVEN = tuple(name for name in NAMES if name != RANDOM)
"""Initial weights that need a file."""
