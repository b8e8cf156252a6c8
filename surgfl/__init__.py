"""SurgFL in Python: use a model, train one's own, compare federated methods and simulate a federation.

    import surgfl

    model = surgfl.load()                                  # the shipped weights, or a checkpoint
    prediction = model.segment(frame)                      # uint8 RGB (H, W, 3)
    for prediction in model.segment_video("surgery.mp4"):  # mask, probabilities, time
        ...
    outcome = surgfl.train("ours", minutes=5)              # three labelled frames, or more
    model = surgfl.load(outcome.model)

Errors are ValueErrors of one sentence that says what to do. Importing this imports nothing heavy: PyTorch comes with
the first function that is called.

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
shared_components.inference.InferenceError: the frame has the shape (3, 48, 64); a frame is a numpy array of uint8, \
RGB, of the shape (H, W, 3): move the channels to the end
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
    """Load a model of segmentation.

    Args:
        model: Path of a checkpoint: of `train`, of a federation, of `surgfl pretrain`; None: the shipped weights.
        bundle: Whose weights are shipped, and whose network a checkpoint without a header is of.
        site: site.yaml of where it is used, for a federation's model for other hospitals.
        precision: ``float32``, or ``bf16`` where the machine computes it.
        device: ``auto``, the accelerator if PyTorch sees one; or such as ``cpu``, ``cuda:1`` or ``mps``.

    Returns:
        A model with ``segment(frame)`` and ``segment_video(path)``, see `inference.arrays.Model`.

    Raises:
        ValueError: There is no such bundle, or the checkpoint is missing, damaged, of another network or task; or
            the device is not here.
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
    """Return the site that a folder's site.yaml describes; a folder that has none is described first.

    Args:
        folder: Labelled frames as `surgfl site init` recognises them, or the path of a site.yaml.
        ids: What the values or colours of the masks are, such as ``{40: "grasper", "#ff8000": "suction"}``.
        split: Videos by ``train``, ``validation`` and ``test``; None: proposed.
        partly_labelled: Whether images without a mask are to be left out.
        allow_left_out: Accept that files of the folder are left out; else more than one in twenty is a ValueError.

    Raises:
        ValueError: The folder is of no known form, a value of the masks has no name, or there is a site.yaml and
            arguments say otherwise.

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
        folder: As of `site`, or what it returned; ``ids`` as well.
        out: Folder of model, scores and picture; None: ``<site's name>-model`` in the working directory.
        minutes: It is to take at most.
        steps: At most, instead of what fits into the minutes; then equal seeds give equal models on one machine.
        size: (height, width) of the network's input, multiples of 32; None: chosen, as ``batch_size`` is.
        bundle: Whose network.
        start: A checkpoint, ``random``, or ``rendered``, the shipped weights.
        seed: Of everything that is random.
        device: As of `load`.
        progress: Display it on standard output.

    Returns:
        ``model`` and ``picture``, paths; scores ``before`` and ``after`` on the test frames; ``remarks``, what these
        cannot show. See `weights.fine_tuning.train.Outcome`.

    Raises:
        ValueError: Something cannot be used; nothing was written.
    """
    from shared_components.common.progress_display import shown
    from shared_components.data.site import Site
    from shared_components.weights.fine_tuning.plan import Settings
    from shared_components.weights.fine_tuning.train import fine_tune

    where = folder if isinstance(folder, Site) else site(folder, ids=ids)
    settings = Settings(minutes, bundle, str(start), size, batch_size, steps, seed, device)
    target = Path(f"{where.name}-model") if out is None else Path(out)
    if not progress:
        return fine_tune(where, target, settings)
    with shown() as board:
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
        methods: Names such as ``local``, ``fedavg``, ``pfedsis``; `surgfl methods` lists them.
        sites: Folder with ``<site>/site.yaml``; None: synthetic sites are rendered.
        out: Folder of the runs and the page; runs that are done there are not repeated.
        seeds: How many.
        rounds, iterations: Of the federation, and local steps of a round; None: those of a small comparison.
        size: (height, width) of the network's input.
        held_out: The one of the sites that never trains.

    Returns:
        Every run's scores, see `experiments.comparison.results.Comparison`; a run without a result says why.

    Raises:
        ValueError: There is no such method, or a site or a number cannot be used.
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
    """A federation that was simulated.

    Attributes:
        folder: Of the run: `surgfl report` makes a page of it.
        models: Each site's checkpoint that was best on its validation frames.
        scores: Each site's scores of the last model on its validation frames.
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

    With one thread (``torch.set_num_threads(1)``) it ends with the weights that FLARE's simulator gives.

    Args:
        job: A job that comes with SurgFL, such as ``pfedsis``, a job folder, or a `Job`.
        sites: By name what `site` returned or its site.yaml; or a folder with ``<site>/site.yaml``.
        out: Folder of all runs; an unfinished one of the same job is continued.
        server: site.yaml of the server's own frames, for methods that train there, such as ``fedst``.
        settings: Change the job's own, such as ``rounds=2`` or ``training={"iterations": 10}``. Other entries of a
            section stay, but iterations replace epochs, and epochs iterations; None means the default.

    Raises:
        ValueError: There is no such job, setting or site, a site refuses the job, or ``start`` is ``file`` and
            the environment variable SURGFL_START_WEIGHTS names none.
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
        raise ValueError(f"{job}: is no job of SurgFL's; name one of nvflare_jobs/, or give a Job")
    return Job.from_json(with_changes(found.to_json(), settings))
