"""Define the box prompts of a task: one rule for training, one for evaluation."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shared_components.core.prompts import Jitter, Prompts, Rule
from shared_components.data.samples import SampleSpec

WORDS = {"first": "the first frame only", "every_second": "every second frame, as SurgFed released"}


@dataclass(frozen=True)
class Prompting:
    """Box prompts in training and in the evaluation of whole videos."""

    training: Prompts
    evaluation: Prompts

    @property
    def definition(self) -> str:
        """Description of the evaluation, saved with the scores."""
        amount, where = self.evaluation.jitter, WORDS[self.evaluation.rule]
        jitter = f", each side shifted by up to {amount:g} of the box's size" if amount else ""
        return (
            f"whole videos, frame by frame, with boxes around the true objects in {where}{jitter}; a class that is "
            "absent in a video's first frame is predicted empty"
        )

    def in_training(self, boxes: Tensor, image: Tensor, generator: torch.Generator) -> Tensor:
        """Return the training prompts for boxes (B, T, N, 4) and images (..., H, W)."""
        return self.training(boxes, size=(image.shape[-2], image.shape[-1]), generator=generator)

    def in_stream(self, boxes: Tensor, image: Tensor, number: int) -> Tensor:
        """Return the evaluation prompts (1, 1, N, 4) of a stream's frame; the sample's number is the seed."""
        generator = torch.Generator().manual_seed(number)
        return self.evaluation(boxes, size=(image.shape[-2], image.shape[-1]), generator=generator)


def inputs_of(prompting: Prompting | None) -> tuple[str, ...]:
    """Return the names of the network's inputs for the task's card."""
    return ("image",) if prompting is None else ("image", "boxes")


def prompting_of(
    kind: str,
    spec: SampleSpec,
    *,
    prompts: Literal["none", Rule],
    evaluation_prompts: Rule,
    jitter: Jitter = 0.0,
    evaluation_jitter: Jitter = 0.0,
) -> Prompting | None:
    """Return the box prompts of a task, or None if ``prompts`` is "none".

    Args:
        kind: Kind of task, for errors.
        spec: What the data must yield.
        prompts: Frames with a box in training: ``first``, ``every_second`` or ``none``.
        jitter: Largest random shift of a box's sides in training, as a share of the side; below 0.5.
        evaluation_prompts: Frames with a box in evaluation, which uses whole videos.
        evaluation_jitter: Largest random shift of a box's sides in evaluation.

    Raises ValueError: the first frame of a clip has no targets.
    """
    if prompts == "none":
        return None
    if spec.frames > 1 and (spec.targets_of, spec.padding) != ("all", "first"):
        raise ValueError(f"{kind}: for prompts {prompts!r}, write targets_of: all and padding: first, or prompts: none")
    return Prompting(Prompts(prompts, jitter), Prompts(evaluation_prompts, evaluation_jitter))
