"""Inference inside MONAI's SupervisedEvaluator."""

from __future__ import annotations

from ignite.engine import Events
from monai.engines import Workflow

from shared_components.inference import FrameStream, PredictionFolder, enlarge


class PredictionWriter:
    """A handler that writes a mask and an overlay for every frame of a `FrameStream`, and a video for a video.

    Args:
        stream: the evaluator's data.
        output_dir: folder of the files, see `PredictionFolder`.
    """

    def __init__(self, stream: FrameStream, output_dir: str) -> None:
        self._folder = PredictionFolder(output_dir, rate=stream.rate)

    def attach(self, engine: Workflow) -> None:
        """Follow an evaluator."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._write)
        engine.add_event_handler(Events.COMPLETED, lambda: self._folder.close())

    def _write(self, engine: Workflow) -> None:
        shot = engine.state.batch["shot"]
        self._folder.add(shot, enlarge(engine.state.output["pred"], shot.image.shape[:2]))
