"""Tables of visible parts: a row per frame, and the intervals of each visible part."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from shared_components.common.sanitise import one_line, table_cells
from shared_components.inference.frames import Shot

FRAMES, INTERVALS = "visible.csv", "intervals.csv"
LEAST = 0.05  # minimum percentage of the pixels of a visible part; fewer pixels are noise
GAP = Fraction(1, 2)  # maximum gap of an interval in seconds, exclusive


@dataclass(frozen=True)
class Stretch:
    """Interval in which a part is visible."""

    part: str
    first: str  # path of the first frame that shows the part
    last: str
    begin: Fraction | None  # start time of the first frame in seconds; None if frames have no times
    end: Fraction | None  # end time of the last frame in seconds
    frames: int  # number of frames that show the part, without bridged gaps
    largest: float  # maximum percentage of the pixels in one frame
    number: int  # index of the first frame over all sequences


class Stretches:
    """Joins frames to intervals; `period` is the frame interval in seconds, None joins only adjacent frames."""

    def __init__(self, period: Fraction | None) -> None:
        self._closed: list[Stretch] = []
        self._count = 0
        self._period = period
        self._open: dict[str, Stretch] = {}
        self._sequence = ""

    def add(self, shot: Shot, shares: Mapping[str, float]) -> None:
        """Add a frame with the percentage of its pixels by part."""
        if shot.sequence != self._sequence:
            self.close()
            self._sequence = shot.sequence
        for part, share in shares.items():
            before, seen = self._open.get(part), share >= LEAST
            if before is not None:
                gap = None if shot.seconds is None or before.end is None else shot.seconds - before.end
                if (not seen) if gap is None else gap >= GAP:
                    self._closed.append(self._open.pop(part))
            if seen:
                self._open[part] = self._grown(self._open.get(part), part, shot, share)
        self._count += 1

    def close(self) -> None:
        """End all open intervals."""
        self._closed += self._open.values()
        self._open = {}

    def all(self) -> list[Stretch]:
        """Return all intervals, sorted by their first frame."""
        return sorted([*self._closed, *self._open.values()], key=lambda stretch: stretch.number)

    def _grown(self, before: Stretch | None, part: str, shot: Shot, share: float) -> Stretch:
        end = None if shot.seconds is None or self._period is None else shot.seconds + self._period
        if before is None:
            return Stretch(part, shot.path, shot.path, shot.seconds, end, 1, share, self._count)
        most = max(before.largest, share)
        return replace(before, last=shot.path, end=end, frames=before.frames + 1, largest=most)


class VisibleTables:
    """Writes `visible.csv` row by row, and `intervals.csv` at the end; no files if the task names no parts.

    The first row of `intervals.csv` contains the `remark` in the column of the part; the next rows are the `doubtful`
    intervals. `rate` is in frames per second, None if frames have no times.
    """

    def __init__(self, folder: Path, rate: Fraction | None) -> None:
        self.stretches = Stretches(None if rate is None else 1 / rate)
        self.frames = 0
        self.parts: tuple[str, ...] = ()
        self.remark = ""
        self.doubtful: Sequence[Stretch] = ()
        self._folder = folder
        self._file: Any = None

    def add(self, shot: Shot, shares: Mapping[str, float]) -> None:
        """Write the row of a frame."""
        if not shares:
            return
        if self._file is None:
            self.parts = tuple(shares)
            self._file = (self._folder / FRAMES).open("w", newline="", encoding="utf-8")
            csv.writer(self._file).writerow(table_cells(["seconds", "frame", *shares]))
        row = [_seconds(shot.seconds), shot.path, *(f"{share:.3f}" for share in shares.values())]
        csv.writer(self._file).writerow(table_cells(row))
        self.frames += 1
        self.stretches.add(shot, shares)

    def close(self) -> None:
        """Close `visible.csv` and write `intervals.csv`."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        with (self._folder / INTERVALS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["from", "to", "part", "first_frame", "last_frame", "largest_percent"])
            if self.remark:
                writer.writerow(table_cells(["", "", self.remark, "", "", ""]))
            for stretch in (*self.doubtful, *self.stretches.all()):
                times, largest = [_seconds(stretch.begin), _seconds(stretch.end)], f"{stretch.largest:.3f}"
                writer.writerow(table_cells([*times, stretch.part, stretch.first, stretch.last, largest]))

    def abandon(self) -> None:
        """Close the incomplete file."""
        if self._file is not None:
            with suppress(OSError):  # the disk may be full
                self._file.close()
        self._file = None


def summary(parts: Sequence[str], stretches: Iterable[Stretch], frames: int) -> Iterator[str]:
    """Yield a line per part: its share of all `frames`, its number of intervals, and its first time."""
    by_part: dict[str, list[Stretch]] = {part: [] for part in parts}
    for stretch in stretches:
        by_part[stretch.part].append(stretch)
    width = max(map(len, parts), default=0)
    for part, intervals in by_part.items():
        if not intervals:
            yield f"{part:<{width}}  never visible"
            continue
        share = 100 * sum(interval.frames for interval in intervals) / frames
        times = "once" if len(intervals) == 1 else f"{len(intervals)} times"
        since = one_line(intervals[0].first) if intervals[0].begin is None else clock(intervals[0].begin)
        yield f"{part:<{width}}  visible in {share:.0f} % of the frames, {times}, first at {since}"


def clock(seconds: Fraction) -> str:
    """Format seconds as a video player does: 1:02:03, or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _seconds(seconds: Fraction | None) -> str:
    return "" if seconds is None else f"{float(seconds):.3f}"
