"""Print the cost of FL-EndoViT's pre-training (Table 8, Section 3.4): parameters, multiply-adds per image, bytes.

`python -m evidence.benchmarks.pretraining_cost`; without timing. Multiply-adds are for the forward pass of a masked
autoencoder with three quarters of the patches hidden, counted by PyTorch and by hand. The bytes follow from the
partition of the sites' training.
"""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.core.task import make_task
from shared_components.networks.mae_vit import CHANNELS, MaeVit
from shared_components.networks.vit import ARCHITECTURES
from shared_components.scenes.site_sets import IMAGES

ROUNDS, HIDDEN = 15, 0.75
PAPER = "the paper: 116.66 M parameters; 166.61 T a round, which are 0.227 G an image; 893 MB both ways; 121 GB"


def multiply_adds(network: MaeVit) -> int:
    """Count multiply-adds of the forward pass of one image."""
    side = network.patch * network.side
    task = make_task("reconstruction", {"patch": network.patch, "pixels": "normalised", "hidden": HIDDEN})
    batch = task.add_randomness({"image": torch.rand(1, CHANNELS, side, side)}, torch.Generator().manual_seed(0))
    return counted(lambda: network(batch["image"], batch["hidden"]))


def counted(forward: Callable[[], object]) -> int:
    """Count the multiply-adds of a forward pass with PyTorch: half of its floating-point operations.

    Attention runs as plain products, since PyTorch's counter does not know the fused attention of a CPU.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        forward()
    return counter.get_total_flops() // 2


def multiply_adds_by_hand(architecture: str) -> int:
    """Count multiply-adds by formula: a block of width C on N tokens has 12 N C^2 + 2 N^2 C.

    All patches are embedded and predicted. The encoder processes the visible patches and the class token, the decoder
    all.
    """
    of = ARCHITECTURES[architecture]
    patches, pixels = (of.side // of.patch) ** 2, CHANNELS * of.patch**2
    seen, every = 1 + patches - round(HIDDEN * patches), 1 + patches

    def block(tokens: int, width: int) -> int:
        return 12 * tokens * width**2 + 2 * tokens**2 * width

    encoder = patches * pixels * of.width + of.blocks * block(seen, of.width)
    decoder = seen * of.width * of.decoder_width + of.decoder_blocks * block(every, of.decoder_width)
    return encoder + decoder + every * of.decoder_width * pixels


def bytes_sent(network: MaeVit) -> int:
    """Return the bytes that a site sends and receives per round in float32."""
    state = network.state_dict()
    partition = partition_network(network, load_method("fedsam", adaptive=True).partition)
    return 4 * sum(state[piece.tensor].numel() for piece in partition if piece.role is Role.GLOBAL)


def main() -> None:
    """Print a line for each architecture."""
    images, sites = sum(IMAGES.values()), len(IMAGES)
    for architecture in ARCHITECTURES:
        network = MaeVit(architecture=architecture)
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        counted, by_hand, sent = multiply_adds(network), multiply_adds_by_hand(architecture), bytes_sent(network)
        print(f"{architecture}: {trained / 1e6:.2f} M trained parameters")
        print(f"  {counted / 1e9:.3f} G multiply-adds an image (by hand {by_hand / 1e9:.3f})")
        print(f"  {counted * images / 1e12:,.0f} T in a round of {images:,} images")
        total = 2 * sent * sites * ROUNDS / 1e9
        print(f"  {sent / 1e6:.1f} MB each way a site and round; {total:.1f} GB over {ROUNDS} rounds and {sites} sites")
    print(PAPER)


if __name__ == "__main__":
    main()
