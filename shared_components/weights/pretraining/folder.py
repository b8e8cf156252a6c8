"""The folder of a pre-training: results, log and state.

RUN/model.safetensors     the averaged weights, with the notes of every checkpoint
RUN/pretraining.json      how they were made
RUN/log.jsonl             losses and scores by step
RUN/state.safetensors     for a resume
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.common.atomic import try_lock, write_json, write_text
from shared_components.federation.runs.store import DamagedState, load_tensors, save_tensors
from shared_components.networks.checkpoints import save_weights
from shared_components.weights.pretraining.plan import Settings

MODEL, FACTS, LOG, STATE = "model.safetensors", "pretraining.json", "log.jsonl", "state.safetensors"
LOCK = ".lock"


class RunFolder:
    """The files of one pre-training with these settings; the folder is created when the training begins."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder while the block runs; ValueError where another process has, or files are foreign."""
        self._refuse_other_files()
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w", encoding="utf-8") as file:
            if not try_lock(file):
                raise ValueError(f"{self.path}: another process pre-trains there; wait for its end")
            for half in self.path.glob(".*.safetensors.*"):  # of an attempt that was killed
                half.unlink()
            yield

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the saved tensors and values; None in a new folder.

        Raises:
            ValueError: The state is of a pre-training with other settings, or damaged.
        """
        if not (self.path / STATE).is_file():
            return None
        try:
            tensors, values = load_tensors(self.path / STATE)
        except DamagedState as error:
            raise ValueError(f"{error}; give another --out to begin anew") from error
        self._refuse_other_settings(values.get("settings", {}))
        self._trim(values["step"])
        return tensors, {"losses": [], **values}

    def save(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write the state; the value ``step`` is the number of steps that are done."""
        save_tensors(self.path / STATE, tensors, {**values, "settings": self.settings.as_values()})

    def save_model(self, weights: Mapping[str, Tensor], notes: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the weights and how they were made."""
        save_weights(self.path / MODEL, weights, notes)
        write_json(self.path / FACTS, facts)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def last_scores(self) -> dict[str, Any]:
        """Return the last scores of the log, if any."""
        records = [json.loads(line) for line in self._lines()]
        return next((record["scores"] for record in reversed(records) if "scores" in record), {})

    def _trim(self, step: int) -> None:
        """Remove log lines of steps after the state, which are taken again."""
        lines = [line for line in self._lines() if _step_of(line) <= step]
        write_text(self.path / LOG, "".join(f"{line}\n" for line in lines))

    def _lines(self) -> list[str]:
        path = self.path / LOG
        return path.read_text("utf-8").splitlines() if path.is_file() else []

    def _refuse_other_files(self) -> None:
        if (self.path / STATE).is_file() or not self.path.exists():
            return
        if any(not path.name.startswith(".") for path in self.path.iterdir()):
            raise ValueError(
                f"{self.path}: holds files and no {STATE} of a pre-training; give --out a new or empty folder"
            )

    def _refuse_other_settings(self, found: Mapping[str, Any]) -> None:
        wanted = self.settings.as_values()
        differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        if differing:
            what = "; ".join(f"{name} was {found.get(name)}, is now {wanted.get(name)}" for name in differing)
            raise ValueError(
                f"{self.path}: holds a pre-training with other settings ({what}); give them again to go on, or "
                "another --out"
            )


def _step_of(line: str) -> float:
    """Return the step of a line; infinite for a line that a crash has cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
