"""Write predictions: images, overlay videos, and tables of visible parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.atomic import NotWritten, not_written
from shared_components.core.evaluation import write_picture
from shared_components.core.task import Answer, Task
from shared_components.inference import MASK_FORMATS, InferenceError
from shared_components.inference.doubtful import DoubtWatch
from shared_components.inference.exports import Export, hashes_of, open_exports, refuse_corrected
from shared_components.inference.folder import ResultFolder
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.out_of_distribution import Likeness, Watch
from shared_components.inference.video import H264Video
from shared_components.inference.visible import FRAMES, INTERVALS, Stretch, VisibleTables

OVERLAYS, MASKS = "overlays", "masks"  # output folders: overlays for viewing, and masks of class ids
VIDEO = "overlay.mp4"


class PredictionFolder:
    """Writes the predictions of a stream. As a context manager it closes at the end, and removes new files on an error.

    Files:

    - `<kind>/<path>.png`, the task's `files`, such as `masks` (class ids) and `overlays`
    - `overlay.mp4`, or `overlays/<sub-folder>.mp4`, if the frames have a rate
    - `visible.csv` and `intervals.csv`, if the task names parts
    - `coco/`, `nifti/` and others for annotation tools, see `EXPORTS`
    - `prediction.json`, the record, see `ResultFolder`

    Args:
        folder: Output folder, created if missing.
        stream: Source of the frames.
        task: The model's task.
        masks: `png`, or `none` to write only overlays.
        pictures: Write overlays as PNG; None: only for images, not for a video.
        exports: Formats of annotation tools to write, of `EXPORTS`.
        alone: Refuse a folder with any files except an earlier result.
        facts: Further entries of the record; they may be extended until the folder is closed.
        watch: Out-of-distribution detector; its warning is the first row of `intervals.csv`.
        doubt: Detector of doubtful masks; its intervals are written to the record and `intervals.csv`.

    Raises InferenceError: the folder contains other files or lies in the input; or an export is requested for a task
    without masks, or cannot contain the frames or classes.
    """

    def __init__(
        self,
        folder: str | Path,
        stream: FrameStream,
        task: Task,
        *,
        masks: str = "png",
        pictures: bool | None = None,
        exports: Sequence[str] = (),
        alone: bool = False,
        facts: Mapping[str, Any] | None = None,
        watch: Watch | None = None,
        doubt: DoubtWatch | None = None,
    ) -> None:
        if masks not in MASK_FORMATS:
            raise InferenceError(f"masks is {masks!r}; use one of {', '.join(MASK_FORMATS)}")
        refuse_inside(Path(folder), stream.source)
        self.count = 0
        self._folder = ResultFolder(folder)
        self._input = str(stream.source.resolve() if isinstance(stream.source, Path) else stream.source)
        self._folder.refuse_another(input=self._input)
        self._folder.refuse_foreign(None if alone else (VIDEO, FRAMES, INTERVALS, *exports))
        refuse_corrected(self._folder.path, self._folder.earlier)
        self._stream, self._task, self.facts = stream, task, dict(facts or {})
        self._watch, self._doubt = watch, doubt
        self._masks = masks == "png"
        self._pictures = not stream.is_video if pictures is None else pictures
        if exports and task.card.kind != "segmentation":
            raise InferenceError(f"a {task.card.kind} model predicts no labels to export; remove --export and --nifti")
        self._exports = open_exports(exports, self._folder.part, stream, task.card.outputs)
        self._video: H264Video | None = None
        self._sequence: str | None = None
        self.tables = VisibleTables(self._folder.part, stream.rate)

    def __enter__(self) -> PredictionFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abandon()

    def add(self, shot: Shot, answer: Answer) -> None:
        """Write one frame and its prediction.

        Raises:
            InferenceError: Other files would be replaced, or the size of an overlay video changes.
            NotWritten: The disk is full, or the folder is not writable.
        """
        pictures = self._task.files(answer, shot.image)
        with self._name_folder():
            if not self.count:
                self._folder.refuse_foreign(pictures)
                self._folder.begin()
            for kind, picture in pictures.items():
                if self._pictures if kind == OVERLAYS else self._masks:
                    write_picture(self._folder.part / kind / f"{shot.path}.png", picture)
            for export in self._exports:
                export.add(shot, pictures[MASKS])
            if self._stream.rate is not None:
                self._append(shot, pictures[OVERLAYS], self._stream.rate)
            self.tables.add(shot, self._task.visible(answer))
        if self._watch is not None:
            self._watch.add(shot.image)
        if self._doubt is not None:
            self._doubt.add(shot, answer)
        self.count += 1

    @property
    def likeness(self) -> Likeness | None:
        """Out-of-distribution score of the frames so far; None if no frame was sampled."""
        return None if self._watch is None else self._watch.likeness()

    @property
    def doubtful(self) -> list[Stretch]:
        """Intervals with doubtful masks so far."""
        return [] if self._doubt is None else self._doubt.intervals()

    def close(self) -> None:
        """Finish all files and move them to their final names; raises as `add`, and without frames."""
        try:
            with self._name_folder():
                self._finish()
        except BaseException:
            self.abandon()
            raise

    def _finish(self) -> None:
        if not self.count:
            raise InferenceError(f"input {self._stream.source} has no frames; give another input")
        if self.likeness is not None:
            self.facts["unlike"] = {**asdict(self.likeness), "warning": self.likeness.warning}
            self.tables.remark = self.likeness.warning
        if self._doubt is not None:
            self.tables.doubtful = self.doubtful
            self.facts["doubtful"] = [
                {"first_frame": span.first, "last_frame": span.last, "largest_percent": round(span.largest, 3)}
                for span in self.doubtful
            ]
        for writer in self._writers():
            writer.close()
        self.facts |= hashes_of(self._folder.part)
        refuse_corrected(self._folder.path, self._folder.earlier)  # edited during the run
        facts = {"input": self._input, "task": self._task.card.to_json()}
        self._folder.appear(facts | {"frames": self.count, "every": self._stream.every} | self.facts)

    @contextmanager
    def _name_folder(self) -> Iterator[None]:
        """Add the folder to errors of the operating system that name no file."""
        try:
            yield
        except OSError as error:
            raise error if isinstance(error, NotWritten) else not_written(self._folder.path, error) from error

    def abandon(self) -> None:
        """Remove the new files; keep an earlier result."""
        for writer in (*self._writers(), self._folder):
            writer.abandon()

    def _writers(self) -> list[H264Video | Export | VisibleTables]:
        return [writer for writer in (self._video, *self._exports, self.tables) if writer is not None]

    def _append(self, shot: Shot, picture: np.ndarray, rate: Fraction) -> None:
        if self._video is None or shot.sequence != self._sequence:
            if self._video is not None:
                self._video.close()
            path = self._folder.part / (f"{OVERLAYS}/{shot.sequence}.mp4" if shot.sequence else VIDEO)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._video, self._sequence = H264Video(path, rate=rate, aspect=self._stream.aspect), shot.sequence
        self._video.add(picture, shot.seconds or Fraction(0))


def refuse_inside(folder: Path, source: str | Path) -> None:
    """Raise InferenceError if the results would lie among the input's images or videos."""
    if isinstance(source, Path) and source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise InferenceError(f"output folder {folder} lies in the input folder {source}; give a folder outside it")
