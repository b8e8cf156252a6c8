"""SurgFL in Python: segment videos, train a model, compare federated methods, simulate a federation.

    import surgfl

    model = surgfl.load()                                  # the shipped weights, or a checkpoint
    prediction = model.segment(frame)                      # uint8 RGB (H, W, 3)
    for prediction in model.segment_video("surgery.mp4"):  # mask, probabilities, time
        ...
    outcome = surgfl.train("ours", minutes=5)              # at least three labelled frames
    model = surgfl.load(outcome.model)

Every error is a ValueError with one sentence: what is wrong and what to do. PyTorch is imported by the first function
call, not by `import surgfl`.

>>> import numpy as np
>>> model = load()
>>> model.classes, model.size
(('background', 'shaft', 'wrist', 'clasper'), (192, 256))
>>> prediction = model.segment(np.zeros((48, 64, 3), np.uint8))
>>> prediction.mask.shape, prediction.mask.dtype, prediction.probabilities.shape
((48, 64), dtype('uint8'), (4, 48, 64))
>>> model.segment(np.zeros((3, 48, 64), np.uint8))
Traceback (most recent call last):
...
shared_components.inference.InferenceError: the frame has the shape (3, 48, 64); frames are NumPy arrays of type \
uint8, RGB, with shape (H, W, 3): move the channels to the end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_components import __version__

if TYPE_CHECKING:
    from shared_components.data.site import Site
    from shared_components.experiments.comparison.results import Comparison
    from shared_components.federation.messages import Job
    from shared_components.inference.arrays import Model
    from shared_components.weights.fine_tuning.train import Outcome

__all__ = ["Simulation", "__version__", "compare", "load", "simulate", "site", "train"]


def load(
    model: str | Path | None = None,
    *,
    bundle: str = "pvt_fpn",
    site: str | Path | None = None,
    precision: str = "float32",
    device: str = "auto",
) -> Model:
    """Load a segmentation model.

    Args:
        model: Checkpoint from `train`, a federation or `surgfl pretrain`. None loads the shipped weights.
        bundle: Bundle with the shipped weights. Also the network of a checkpoint without a header.
        site: site.yaml of the hospital that uses the model. Needed by models for hospitals outside their federation.
        precision: ``float32``, or ``bf16`` if the processor supports it.
        device: ``auto`` (an accelerator if PyTorch finds one), ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    Returns:
        Model with ``segment(frame)`` and ``segment_video(path)``, see `inference.arrays.Model`.

    Raises:
        ValueError: The bundle or the device does not exist, or the checkpoint is missing, damaged, or for another
            network or task.
    """
    from shared_components.core.trained_model import open_trained
    from shared_components.inference.arrays import Model

    given = None if model is None else Path(model)
    path, trained = open_trained(given, bundle=bundle, site=None if site is None else Path(site))
    return Model(trained, precision=precision, path=path, device=device)


def site(
    folder: str | Path,
    *,
    ids: Mapping[int | str, str] | None = None,
    split: Mapping[str, Sequence[str]] | None = None,
    partly_labelled: bool | None = None,
    allow_left_out: bool = False,
) -> Site:
    """Read a folder's site.yaml, or write one first if the folder has none.

    Args:
        folder: Folder of labelled frames in a layout that `surgfl site init` recognises, or the path of a site.yaml.
        ids: Class name for each value or colour of the masks, such as ``{40: "grasper", "#ff8000": "suction"}``.
        split: Video names for ``train``, ``validation`` and ``test``. None proposes a split.
        partly_labelled: If true, leave out images without a mask. If false, such images show no instrument.
        allow_left_out: If false, raise an error when more than 5% of the folder's files would be left out.

    Raises:
        ValueError: The layout is unknown, a mask value has no class name, or the arguments contradict the site.yaml.

    >>> site("nowhere")
    Traceback (most recent call last):
    ...
    shared_components.data.site.SiteError: nowhere: no such file; write a site.yaml there
    """
    from shared_components.commands.train import described_quietly

    options = [f"--id={value}={name}" for value, name in (ids or {}).items()]
    options += [f"--{name}={','.join(videos)}" for name, videos in (split or {}).items()]
    if partly_labelled is not None:
        options.append("--partly-labelled" if partly_labelled else "--no-partly-labelled")
    if allow_left_out:
        options.append("--allow-left-out")
    return described_quietly(Path(folder), options)


def train(
    folder: str | Path | Site,
    out: str | Path | None = None,
    *,
    minutes: float = 5.0,
    steps: int | None = None,
    size: tuple[int, int] | None = None,
    batch_size: int | None = None,
    bundle: str = "pvt_fpn",
    start: str | Path = "rendered",
    seed: int = 2022,
    device: str = "auto",
    ids: Mapping[int | str, str] | None = None,
    progress: bool = False,
) -> Outcome:
    """Train a model on a folder of labelled frames, as `surgfl train` does, and score it before and after.

    Args:
        folder: Folder of labelled frames or site.yaml, see `site`; or a `Site`.
        out: Output folder for the model, scores and picture. None: ``<site>-model`` in the working directory.
        minutes: Maximum training time.
        steps: Maximum number of steps, instead of ``minutes``. Equal seeds then give equal models.
        size: (height, width) of the network's input, multiples of 32. None chooses a size.
        batch_size: Frames per step. None chooses a number.
        bundle: Bundle with the network.
        start: Initial weights: a checkpoint, ``random``, or ``rendered`` (the shipped weights).
        seed: Seed of initialisation, sampling and augmentation.
        device: See `load`.
        ids: See `site`.
        progress: Show a progress bar on standard output.

    Returns:
        Paths ``model`` and ``picture``, test scores ``before`` and ``after`` training, and ``remarks`` on the limits
        of these scores. See `weights.fine_tuning.train.Outcome`.

    Raises:
        ValueError: An argument or the data cannot be used. Nothing was written.
    """
    from shared_components.common.progress_display import show_progress
    from shared_components.data.site import Site
    from shared_components.weights.fine_tuning.plan import Settings
    from shared_components.weights.fine_tuning.train import fine_tune

    where = folder if isinstance(folder, Site) else site(folder, ids=ids)
    settings = Settings(minutes, bundle, str(start), size, batch_size, steps, seed, device)
    target = Path(f"{where.name}-model") if out is None else Path(out)
    if not progress:
        return fine_tune(where, target, settings)
    with show_progress() as board:
        return fine_tune(where, target, settings, say=board.say)


def compare(
    methods: Sequence[str],
    sites: str | Path | None = None,
    out: str | Path = "comparison",
    *,
    seeds: int = 1,
    rounds: int | None = None,
    iterations: int | None = None,
    size: tuple[int, int] | None = None,
    held_out: str = "",
) -> Comparison:
    """Train federated methods on the same sites and write a page that compares them, as `surgfl compare` does.

    Args:
        methods: Method names, such as ``local``, ``fedavg``, ``pfedsis``. `surgfl methods` lists all.
        sites: Folder with ``<site>/site.yaml``. None renders synthetic sites.
        out: Output folder for the runs and the page. Finished runs in this folder are reused.
        seeds: Number of seeds.
        rounds: Number of federated rounds. None takes the rounds of `surgfl compare --scale small`.
        iterations: Local steps per round. None takes the steps of `surgfl compare --scale small`.
        size: (height, width) of the network's input.
        held_out: Name of a site that never trains.

    Returns:
        The scores of each run, see `experiments.comparison.results.Comparison`. A failed run has its error message.

    Raises:
        ValueError: A method does not exist, or a site or number cannot be used.
    """
    from shared_components.common.extras import require_federation

    require_federation()
    from shared_components.commands.compare import compared_quietly

    options = {"methods": ",".join(methods), "out": out, "seeds": seeds, "sites": sites, "rounds": rounds}
    options |= {"iterations": iterations, "held-out": held_out or None}
    options |= {"size": None if size is None else f"{size[0]}x{size[1]}"}
    return compared_quietly([f"--{name}={value}" for name, value in options.items() if value is not None])


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated federation.

    Attributes:
        folder: Folder of the run. `surgfl report` makes a page from it.
        models: Best checkpoint on the validation frames, for each site.
        scores: Validation scores of the last round's model, for each site.
    """

    folder: Path
    models: Mapping[str, Path]
    scores: Mapping[str, Mapping[str, Any]]


def simulate(
    job: str | Path | Job,
    sites: str | Path | Mapping[str, str | Path | Site],
    out: str | Path = "runs",
    *,
    server: str | Path | None = None,
    **settings: Any,
) -> Simulation:
    """Run a federation of several sites in this process.

    With one thread (``torch.set_num_threads(1)``) FLARE's simulator gives the same weights.

    Args:
        job: Name of a job in nvflare_jobs, such as ``pfedsis``, or a job folder, or a `Job`.
        sites: Mapping from name to a `Site` or site.yaml, or a folder with ``<site>/site.yaml``.
        out: Folder of all runs. An unfinished run of the same job is resumed.
        server: site.yaml of the server's own frames, for methods that train at the server, such as ``fedst``.
        settings: Job settings to change, such as ``rounds=2`` or ``training={"iterations": 10}``. Other entries of a
            section stay, except that ``iterations`` replaces ``epochs`` and the reverse. None restores the default.

    Raises:
        ValueError: The job, a setting or a site does not exist, or a site refuses the job. Also if ``start`` is
            ``file`` and the environment variable SURGFL_START_WEIGHTS is not set.
    """
    import json

    from shared_components.common.extras import require_federation

    require_federation()
    from shared_components.core.initial_weights import start_weights
    from shared_components.data.site import Site
    from shared_components.experiments.comparison.sites import own_sites
    from shared_components.federation.in_process import run_together
    from shared_components.federation.messages import FederationError

    if isinstance(sites, Mapping):
        files = {name: one.path if isinstance(one, Site) else Path(one) for name, one in sites.items()}
    else:
        files, _ = own_sites(Path(sites), "")
    own = None if server is None else Path(server)
    try:
        made = run_together(_job(job, settings), files, Path(out), server_data=own, start_weights=start_weights())
    except FederationError as error:
        raise ValueError(str(error)) from error
    folder = made.folder
    finals = {name: json.loads((folder / name / "final.json").read_text(encoding="utf-8")) for name in files}
    return Simulation(folder, {name: folder / name / "best.safetensors" for name in files}, finals)


def _job(job: str | Path | Job, settings: Mapping[str, Any]) -> Job:
    from shared_components.federation.messages import Job, with_changes
    from shared_components.flare.deployment.job_folder import read_job_folder
    from shared_components.flare.deployment.submission import find_job

    found = job if isinstance(job, Job) else read_job_folder(find_job(str(job))).job
    if found is None:
        raise ValueError(f"{job} is not a SurgFL job; give the name of a folder in nvflare_jobs/, or a Job")
    return Job.from_json(with_changes(found.to_json(), settings))
