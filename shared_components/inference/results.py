"""Write predictions: pictures, overlay videos, and tables of visible parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.atomic import NotWritten, not_written
from shared_components.core.evaluation import write_picture
from shared_components.core.task import Answer, Task
from shared_components.inference import InferenceError
from shared_components.inference.doubtful import DoubtWatch
from shared_components.inference.folder import ResultFolder
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.unlike import Likeness, Watch
from shared_components.inference.video import H264Video
from shared_components.inference.visible import FRAMES, INTERVALS, Stretch, VisibleTables
from shared_components.inference.volumes import FOLDER as VOLUMES
from shared_components.inference.volumes import Volumes, label_hashes, refuse_corrected

OVERLAYS, MASKS = "overlays", "masks"
"""Kinds of a task's pictures: for people, and of class ids."""
VIDEO = "overlay.mp4"
KEEP = ("png", "none")
LABEL_HASHES = "labels"
"""Key of the record with the hashes of label volumes, so that corrected ones are not replaced."""


class PredictionFolder:
    """Writes the predictions of a stream's frames; as a context, closed at the end and abandoned after an error.

    Files: `<kind>/<path>.png` by a task's `files`, such as `masks` (one channel, class ids) and `overlays`; where the
    frames have a rate `overlay.mp4`, of a sub-folder `overlays/<sub-folder>.mp4`; of a task that names parts
    `visible.csv` and `intervals.csv`; for label editors `nifti/`, see `Volumes`; and the record `prediction.json`, see
    `ResultFolder`.

    Args:
        folder: Created if needed.
        stream: The source of the frames.
        task: The model's task.
        masks: `png`, or `none`: omit every kind but the overlays.
        pictures: Write overlays as PNG; None: of images, not of a video.
        volumes: Also write labels and frames as volumes.
        alone: Refuse a folder with any files that are not of an earlier result.
        facts: More of the record; may be added to until the folder is closed.
        watch: Is shown the frames; what it finds is in the record, and a warning in the first row of `intervals.csv`.
        doubt: Is shown the frames and masks; the stretches that it finds are in the record and in `intervals.csv`.

    Raises:
        InferenceError: The folder holds something that is not of an earlier result, or lies in the input; the task has
            no masks, or the video too many frames, for volumes.
    """

    def __init__(
        self,
        folder: str | Path,
        stream: FrameStream,
        task: Task,
        *,
        masks: str = "png",
        pictures: bool | None = None,
        volumes: bool = False,
        alone: bool = False,
        facts: Mapping[str, Any] | None = None,
        watch: Watch | None = None,
        doubt: DoubtWatch | None = None,
    ) -> None:
        if masks not in KEEP:
            raise InferenceError(f"masks is {masks!r}; use one of {', '.join(KEEP)}")
        refuse_inside(Path(folder), stream.source)
        self.count = 0
        self._folder = ResultFolder(folder)
        self._input = str(stream.source.resolve() if isinstance(stream.source, Path) else stream.source)
        self._folder.refuse_another(input=self._input)
        self._folder.refuse_foreign(None if alone else (VIDEO, FRAMES, INTERVALS, VOLUMES))
        refuse_corrected(self._folder.path / VOLUMES, self._folder.earlier.get(LABEL_HASHES))
        self._stream, self._task, self.facts = stream, task, dict(facts or {})
        self._watch, self._doubt = watch, doubt
        self._masks = masks == "png"
        self._pictures = not stream.is_video if pictures is None else pictures
        self._volumes = self._make_volumes() if volumes else None
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
            InferenceError: The folder holds what would be replaced, or an overlay video would change its size.
            NotWritten: The disk is full, or the folder cannot be written.
        """
        pictures = self._task.files(answer, shot.image)
        with self._naming():
            if not self.count:
                self._folder.refuse_foreign(pictures)
                self._folder.begin()
            for kind, picture in pictures.items():
                if self._pictures if kind == OVERLAYS else self._masks:
                    write_picture(self._folder.part / kind / f"{shot.path}.png", picture)
            if self._volumes is not None:
                self._volumes.add(shot, pictures[MASKS])
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
        """How unlike the frames so far are what the model has learnt; None where nobody looked."""
        return None if self._watch is None else self._watch.found()

    @property
    def doubtful(self) -> list[Stretch]:
        """The stretches so far whose masks are in doubt."""
        return [] if self._doubt is None else self._doubt.found()

    def close(self) -> None:
        """Finish all files and move them to their names.

        Raises:
            InferenceError: There was no frame, or the video cannot be finished.
            NotWritten: The disk is full.
        """
        try:
            with self._naming():
                self._finish()
        except BaseException:
            self.abandon()
            raise

    def _finish(self) -> None:
        if not self.count:
            raise InferenceError(f"input {self._stream.source} has no frames")
        if self.likeness is not None:
            self.facts["unlike"] = {**asdict(self.likeness), "warning": self.likeness.warning}
            self.tables.remark = self.likeness.warning
        if self._doubt is not None:
            self.tables.doubtful = self.doubtful
            self.facts["doubtful"] = [
                {"first_frame": one.first, "last_frame": one.last, "largest_percent": round(one.largest, 3)}
                for one in self.doubtful
            ]
        for writer in self._writers():
            writer.close()
        if self._volumes is not None:
            self.facts[LABEL_HASHES] = label_hashes(self._folder.part / VOLUMES)
        refuse_corrected(self._folder.path / VOLUMES, self._folder.earlier.get(LABEL_HASHES))  # meanwhile
        made = {"input": self._input, "task": self._task.card.to_json()}
        self._folder.appear(made | {"frames": self.count, "every": self._stream.every} | self.facts)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the folder where the system refuses to grow a file and does not say which."""
        try:
            yield
        except OSError as error:
            raise error if isinstance(error, NotWritten) else not_written(self._folder.path, error) from error

    def abandon(self) -> None:
        """Remove the new files; an earlier result stays."""
        for writer in (*self._writers(), self._folder):
            writer.abandon()

    def _writers(self) -> list[H264Video | Volumes | VisibleTables]:
        return [writer for writer in (self._video, self._volumes, self.tables) if writer is not None]

    def _make_volumes(self) -> Volumes:
        card = self._task.card
        if card.kind != "segmentation":
            raise InferenceError(f"a model of {card.kind} gives no labels for a NIfTI volume; leave --nifti out")
        return Volumes(self._folder.part / VOLUMES, self._stream, card.outputs)

    def _append(self, shot: Shot, picture: np.ndarray, rate: Fraction) -> None:
        if self._video is None or shot.sequence != self._sequence:
            if self._video is not None:
                self._video.close()
            path = self._folder.part / (f"{OVERLAYS}/{shot.sequence}.mp4" if shot.sequence else VIDEO)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._video, self._sequence = (H264Video(path, rate=rate, aspect=self._stream.aspect), shot.sequence)
        self._video.add(picture, shot.seconds or Fraction(0))


def refuse_inside(folder: Path, source: str | Path) -> None:
    """Refuse results that would lie among the input's images or videos; InferenceError."""
    if isinstance(source, Path) and source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise InferenceError(
            f"the results' folder {folder} lies in the input {source}, among whose files they would be; give another"
        )
