"""Local training, evaluation and inference with MONAI's engines, for the bundles' YAML files.

A `$` expression of a bundle is one call into this package and contains no logic. Only this package imports MONAI; a
federation's executor imports the modules to which this package delegates.
"""

# ruff: noqa: F401  the imports are the names for YAML files

from shared_components.bundle_engines.evaluators import (
    EvaluationStep,
    FirstMetric,
    NativeSamples,
    PredictionStep,
    PredictionWriter,
    ScoreWriter,
    ValidationBatches,
    better,
    key_metric,
)
from shared_components.bundle_engines.frames import FrameReader, FrameToNetworkd, LoadImageOrArrayd, MaskToFramed
from shared_components.bundle_engines.options import bundle_root, refuse_unknown_keys
from shared_components.bundle_engines.prepare import (
    explain_errors,
    input_size,
    make_optimizer,
    method_of,
    network_for,
    network_from_checkpoint,
    open_site,
    own_checkpoint,
    readable_dataset,
    seen_videos,
    settings_at,
    settings_of,
    show_progress,
    task_from_checkpoint,
    task_of,
    trained_network_for,
)
from shared_components.bundle_engines.train import (
    LossMeans,
    Rounds,
    TrainingStep,
    WeightSaver,
    average_gradients,
    join,
    leave,
    notes_of,
    on_first_rank,
)
from shared_components.common.machine import device
from shared_components.inference.frames import FrameStream
from shared_components.inference.objects import objects_in
from shared_components.inference.objects import task_of as task_of_objects
from shared_components.inference.predict import shown_frames
