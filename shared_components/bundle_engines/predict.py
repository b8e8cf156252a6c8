"""Inference inside MONAI's SupervisedEvaluator."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator, Workflow

from shared_components.inference import FrameStream, PredictionFolder
from shared_components.task import Answer, Task


class PredictionStep:
    """The `iteration_update` of SupervisedEvaluator: one frame's prediction at the frame's own size.

    Args:
        task: what the network has learnt.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, engine: SupervisedEvaluator, batch: dict[str, Any]) -> dict[str, Any]:
        """Return {"pred": the network's outputs in the task's terms, "answer": the prediction}."""
        engine.network.eval()
        image = batch["image"].to(engine.state.device)
        drawn = self._task.draw({"image": image}, torch.Generator().manual_seed(0))
        with torch.no_grad():
            outputs = self._task.predict(engine.network, drawn)
        answers: list[Answer] = self._task.answers(outputs, drawn, [batch["shot"].image.shape[:2]])
        return {"pred": outputs, "answer": answers[0]}


class PredictionWriter:
    """A handler that writes prediction and overlay of every frame of a `FrameStream`, and a video for a video.

    Args:
        stream: the evaluator's data.
        task: what the network has learnt.
        output_dir: folder of the files, see `PredictionFolder`.
    """

    def __init__(self, stream: FrameStream, task: Task, output_dir: str) -> None:
        self._task = task
        self._folder = PredictionFolder(output_dir, rate=stream.rate)

    def attach(self, engine: Workflow) -> None:
        """Follow an evaluator."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._write)
        engine.add_event_handler(Events.COMPLETED, lambda: self._folder.close())

    def _write(self, engine: Workflow) -> None:
        shot = engine.state.batch["shot"]
        self._folder.add(shot.name, self._task.files(engine.state.output["answer"], shot.image))
