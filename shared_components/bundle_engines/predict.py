"""Inference inside MONAI's SupervisedEvaluator."""

from __future__ import annotations

import logging
from typing import Any

from ignite.engine import Engine, Events
from monai.engines import SupervisedEvaluator, Workflow

from shared_components import __version__
from shared_components.core.task import Task
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import FrameCount, Predictor
from shared_components.inference.results import PredictionFolder

logger = logging.getLogger(__name__)


class PredictionStep:
    """The `iteration_update` of SupervisedEvaluator: one frame's prediction at the frame's own size.

    Args:
        task: What the network has learnt.
        precision: `bf16` runs the network under bfloat16 autocast.
    """

    def __init__(self, task: Task, *, precision: str = "float32") -> None:
        self._task, self._precision = task, precision
        self._predictor: Predictor | None = None

    def __call__(self, engine: SupervisedEvaluator, batch: dict[str, Any]) -> dict[str, Any]:
        """Return {"pred": the network's outputs in the task's terms, "answer": the prediction}."""
        if self._predictor is None:
            self._predictor = Predictor(engine.network, self._task, precision=self._precision)
        shot = batch["shot"]
        outputs, answer = self._predictor(batch["image"], shot.image.shape[:2], sequence=shot.sequence)
        return {"pred": outputs, "answer": answer}


class PredictionWriter:
    """A handler that writes the prediction of every frame of a `FrameStream`, the evaluator's data.

    Args and files as in `PredictionFolder`; `checkpoint` is the model's path, for the record.
    """

    def __init__(
        self,
        stream: FrameStream,
        task: Task,
        output_dir: str,
        *,
        masks: str = "png",
        pictures: bool | None = None,
        checkpoint: str | None = None,
    ) -> None:
        facts = {"surgfl": __version__, "model": checkpoint, "height": stream.height, "width": stream.width}
        self._folder = PredictionFolder(output_dir, stream, task, masks=masks, pictures=pictures, facts=facts)
        self._total, self._output_dir = stream.total, output_dir

    def attach(self, engine: Workflow) -> None:
        """Follow an evaluator."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._write)
        engine.add_event_handler(Events.COMPLETED, self._finish)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._abandon)

    def _start(self) -> None:
        self._frames = FrameCount(self._total)

    def _write(self, engine: Workflow) -> None:
        self._folder.add(engine.state.batch["shot"], engine.state.output["answer"])
        self._frames.step()

    def _finish(self) -> None:
        self._folder.close()
        logger.info("%s: wrote the predictions of %d frames", self._output_dir, self._folder.count)

    def _abandon(self, engine: Engine, error: Exception) -> None:
        self._folder.abandon()
        raise error  # ignite considers an error handled where there is a handler
