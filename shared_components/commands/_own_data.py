"""Describe a hospital's own data by its folder, by options, and by answers at the terminal."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.common.plain_yaml import read_yaml
from shared_components.common.schema import check_values
from shared_components.data.annotations.formats import conversion_hint
from shared_components.data.custom import ids
from shared_components.data.custom.description import CLASS, KINDS, refuse_class_masks_of_videos
from shared_components.data.custom.frame_names import ALL_FRAMES
from shared_components.data.custom.guess_layout import FolderLayout, class_words, guess_layout
from shared_components.data.custom.layout import video_names
from shared_components.data.custom.list_files import Scan
from shared_components.data.custom.measure_data import Values, numbering_of, values_of, video_rate
from shared_components.data.files.images import DataError
from shared_components.data.files.label_names import label_names
from shared_components.data.site import SiteError
from shared_components.data.site_file import KEYS


@dataclass(frozen=True)
class Prompt:
    """Asks at the terminal for values that were not given; without `ask`, takes the proposed values."""

    ask: bool

    def get(
        self, option: str, given: Any, question: str, proposed: str | None, read: Callable[[str], Any] = str
    ) -> Any:
        """Return the given value, the answer to a question, or the proposed value; SiteError if there is none."""
        if given is not None:
            return read(given) if isinstance(given, str) else given
        if not self.ask:
            if proposed is None:
                raise SiteError(f"{option} is not given, and nobody is there to ask: {question}; add {option}")
            return read(proposed)
        while True:
            try:
                answer = input(f"{question}{'' if proposed is None else f' [{proposed}]'}: ").strip() or proposed
            except EOFError:
                remedy = "give the rest as options (surgfl site init -h)"
                raise SiteError(f"the answers ended before all was asked; {remedy}") from None
            try:
                if answer is None:
                    raise ValueError("an answer is needed here")
                return read(answer)
            except ValueError as error:
                print(f"  {error}")


def read_as(key: str) -> Callable[[str], Any]:
    """Return a function that reads an answer as the value of a key of site.yaml; ValueError if it is invalid."""

    def read(answer: str) -> Any:
        value = read_yaml(answer)
        check_values(KEYS, {key: value})
        return value

    return read


def yes_or_no(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise ValueError("answer yes or no")
    return answer.lower().startswith("y")


def own_layout(args: Namespace, folder: Path, files: Scan) -> FolderLayout:
    """Return the layout of a folder, given by options or guessed from its files."""
    kind = args.dataset if args.dataset in KINDS else None
    if not args.images and not args.masks:
        try:
            return guess_layout(folder, kind, files=files)
        except DataError as error:
            if hint := conversion_hint(folder):
                what = f"{error}; the folder also" if files.masks or files.volumes else f"{folder}: has no masks, but"
                raise SiteError(f"{what} {hint}") from error
            raise
    if not (args.images and args.masks):
        raise SiteError("--images and --masks go together; give both, or neither")
    refuse_class_masks_of_videos(args.images, args.masks)
    words = class_words(files, args.images, args.masks) if CLASS in args.masks else ()
    return FolderLayout(kind or ("nifti" if ".nii" in args.masks else "frames"), args.images, args.masks, (), words)


@dataclass(frozen=True)
class OwnFolder:
    """A folder with data of a known layout, the options that describe it, and a prompt for missing options."""

    args: Namespace
    folder: Path
    prompt: Prompt
    layout: FolderLayout

    @cached_property
    def videos(self) -> Sequence[str]:
        return list(self.layout.videos) or video_names(self.folder, self.layout.images)

    def describe(self) -> dict[str, Any]:
        """Return the keys of a site.yaml that describe the data."""
        args, layout = self.args, self.layout
        what = "label volumes" if layout.kind == "nifti" else "masks"
        print(f"{args.folder}: {counted(len(self.videos), 'video')} at {layout.images!r}, {what} at {layout.masks!r}")
        values, threshold = self._values()
        names = self._class_words(values) if layout.words else self._ids(values, self._described())
        keys: dict[str, Any] = {"dataset": layout.kind, "images": layout.images, "masks": layout.masks, "ids": names}
        if threshold is not None:
            keys["threshold"] = threshold
        if values.unlabelled and self._is_partly_labelled(values):
            keys["partly_labelled"] = True
        rate = args.rate if args.rate is not None else video_rate(self.folder, layout, self.videos)
        keys |= self._numbering()
        if rate is not None:
            keys["rate"] = rate
        if values.turned is not None and args.axes is None:
            print(
                f"note: {values.turned} has other axes than x, y, t in its header; it is read as ITK-SNAP and 3D "
                "Slicer show it. If a script wrote it and ignored the header: --axes stored"
            )
        if args.axes is not None:
            keys["axes"] = args.axes
        return keys

    def _described(self) -> dict[ids.Value, str]:
        """Return names from a file of label names in the folder, or in a folder on the way to the masks."""
        parts = takewhile(lambda part: not set(part) & set("{*"), self.layout.masks.split("/"))
        folders = accumulate(parts, lambda folder, part: folder / part, initial=self.folder)
        return label_names([folder for folder in folders if folder.is_dir()])

    def _values(self) -> tuple[Values, float | None]:
        threshold = self.args.threshold
        # values with names distinguish the numbers of a grey palette from its places
        known = [] if self.layout.words else [*given_ids(self.args.id, coloured=False), *self._described()]
        values = values_of(self.folder, self.layout, self.videos, threshold=threshold, known=known)
        if threshold is not None or not values.edges:
            return values, threshold
        what = f"the edges of the masks are smoothed (anti-aliased): {values.edges} values occur only along edges"
        if not self.prompt.ask:
            raise SiteError(
                f"{self.args.folder}: {what}; export the masks without smoothing, or add --threshold 0.5: a pixel on "
                "an edge then belongs to a class that covers at least half of it"
            )
        question = f"{what}; minimum share of a pixel that belongs to a class"
        threshold = self.prompt.get("--threshold", None, question, "0.5", read_as("threshold"))
        return values_of(self.folder, self.layout, self.videos, threshold=threshold, known=known), threshold

    def _numbering(self) -> dict[str, Any]:
        applies = self.layout.kind == "frames" and not self.layout.words
        guess = numbering_of(self.folder, self.layout, self.videos) if applies else None
        counts, first = self.args.mask_numbers, self.args.first_frame
        if guess is not None:
            known = guess.certain or (first is not None and (counts is not None or guess.counts == ALL_FRAMES))
            if not known and self.prompt.ask:
                question = (
                    "what masks are numbered by: all frames of the video (frames), those that FFmpeg's filter takes "
                    "each second (fps=1), or every 25th frame (every=25)"
                )
                counts = self.prompt.get("--mask-numbers", counts, question, guess.counts, read_as("mask_numbers"))
                question = "the number of the first mask, 0 or 1"
                first = self.prompt.get("--first-frame", first, question, str(guess.first), read_as("first_frame"))
            counts, first = counts or guess.counts, guess.first if first is None else first
            if not known and not self.prompt.ask:
                print(_numbering_note(counts, first))
        keys: dict[str, Any] = {"first_frame": first} if first else {}
        return keys if counts in (None, ALL_FRAMES) else keys | {"mask_numbers": counts}

    def _class_words(self, values: Values) -> dict[str, str]:
        """Return the class of each word in the names of masks: its given name, or the word; ask for numbers."""
        words = self.layout.words
        given = {text.strip(): name.strip() for text, _, name in (option.partition("=") for option in self.args.id)}
        if unused := [text for text in given if text not in words]:
            print(
                f"note: --id {unused[0]} is not used, since each class has masks of its own, called "
                f"{', '.join(words)}; to give one another name: --id {words[0]}=NAME"
            )
        table = {word: given.get(word, "" if word.isdecimal() else word) for word in words}
        for word in [word for word in words if not table[word] and word not in given]:
            where = f"in {values.masks[word]} of {counted(values.count, 'frame')}"
            question = f"masks called {word!r} ({where}) are (a name or {ids.IGNORE})"
            table[word] = self.prompt.get(f"--id {word}=NAME", None, question, None, ids.class_name)
        return ids.parse_words(table)

    def _ids(self, values: Values, described: Mapping[ids.Value, str]) -> dict[Any, str]:
        """Return the table of values and names: given, from a file, or asked; 0 and black are background."""
        table = given_ids(self.args.id, coloured=values.coloured)
        for value, name in described.items():
            if isinstance(value, int) != values.coloured and value not in table:
                table[value] = ids.class_name(name, ids.written(value))
        background: ids.Value = (0, 0, 0) if values.coloured else 0
        unnamed = sorted(values.pixels.keys() - table.keys() - {background}, key=_number_first)
        if unnamed and not self.prompt.ask:
            options = " ".join(f"--id '{ids.written(value)}=NAME'" for value in unnamed)
            raise SiteError(f"the masks have values without a name; add {options} (or {ids.IGNORE}, {ids.BACKGROUND})")
        for value in unnamed:
            where = f"in {values.masks[value]} of {counted(values.count, 'mask')}"
            share = f"{values.percent(value):.2g} % of their pixels"
            question = f"{ids.written(value)} ({where}, {share}) is (a name, {ids.BACKGROUND} or {ids.IGNORE})"
            table[value] = self.prompt.get("--id", None, question, None, ids.class_name)
        ids.parse_ids(table)
        ordered = sorted(table, key=_number_first)
        return {value if isinstance(value, int) else ids.written(value): table[value] for value in ordered}

    def _is_partly_labelled(self, values: Values) -> bool:
        """Return whether frames without a mask are left out; a volume's frame without label may show no class."""
        given = self.args.partly_labelled
        if self.layout.kind == "frames":
            question = f"leave out {counted(values.unlabelled, 'image')} without a mask"
            return self.prompt.get("--partly-labelled", given, question, "yes", yes_or_no)
        question = (
            f"{values.unlabelled} of {counted(values.count, 'frame')} without a label: still to be labelled (yes), or "
            "with nothing to see (no)"
        )
        return self.prompt.get("--partly-labelled or --no-partly-labelled", given, question, None, yes_or_no)


def _numbering_note(counts: str, first: int) -> str:
    if counts == ALL_FRAMES:
        other = 1 - first
        return f"note: the numbers of masks count a video's frames from {first}; if from {other}: --first-frame {other}"
    kind, _, value = counts.partition("=")
    frames = f"each {value}th frame" if kind == "every" else f"the frames that FFmpeg's filter {counts} takes"
    return (
        f"note: the numbers of masks count {frames}, from {first}, since each video has as many; if they count all "
        "frames: --mask-numbers frames"
    )


def given_ids(options: Sequence[str], *, coloured: bool) -> dict[ids.Value, str]:
    table: dict[ids.Value, str] = {}
    for option in options:
        text, equals, name = (part.strip() for part in option.partition("="))
        if not equals:
            raise SiteError(f"--id is {option!r}; write a value and its name: '40=grasper' or '#ff8000=grasper'")
        value = ids.parse_value(int(text) if text.isdecimal() else text)
        if coloured and isinstance(value, int):
            value = ids.grey(value)
        if value in table:
            raise SiteError(f"--id gives {text} twice; keep one of them")
        table[value] = ids.class_name(name, text)
    return table


def _number_first(value: ids.Value) -> tuple[bool, ids.Value]:
    return isinstance(value, tuple), value
