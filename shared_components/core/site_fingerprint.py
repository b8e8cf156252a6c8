"""Compute a digest of a site's description and data, by which a comparison recognises finished runs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from shared_components.core.bundle import load_bundle
from shared_components.core.task import choose_task
from shared_components.data.samples import Sample, SampleSpec, samples
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site


def fingerprint(path: str, bundle: str, tasks: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return a digest of a site.yaml, of its files' names and sizes, and of an added site's description.

    Text vectors and text encoder count; folders do not. The bundle with ``tasks`` settings and the site's task decide
    which files are read. Raises SiteError if the description is wrong, or a video is missing.
    """
    return _fingerprint(path, bundle, json.dumps(dict(tasks or {})), Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _fingerprint(path: str, bundle: str, tasks: str, changed: int) -> str:
    site = load_site(Path(path))
    digest = hashlib.sha256(Path(path).read_bytes())
    spec = _spec_of(site, bundle, json.loads(tasks))
    for split in sorted(site.split):
        for sample in _samples(site, split, spec):
            targets = [path for _, labels in sample.labelled for paths in labels.values() for path in paths]
            files = [(path.name, _size(path)) for path in (*sample.images, *targets)]
            digest.update(json.dumps([split, sample.video, sample.index, files]).encode())
    if site.added is not None:
        digest.update(site.added.path.read_bytes())
    for own in (site.text_vectors, site.text_encoder):
        if own is not None:
            inside = sorted(path for path in [own, *own.rglob("*")] if path.is_file())
            digest.update(json.dumps([(path.name, path.stat().st_size) for path in inside]).encode())
    return digest.hexdigest()


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the file that contains an address: grades.csv/017, video.mp4/000123."""
    return next(place for place in (path, *path.parents) if place.exists()).stat().st_size


def _samples(site: Site, split: str, spec: SampleSpec) -> list[Sample]:
    """List a split's samples; single frames if the site cannot give clips, so that the federation refuses the site."""
    try:
        return samples(site, split, spec)
    except SiteError:
        if spec.frames == 1:
            raise
        return samples(site, split, replace(spec, frames=1, interval=0.0))


def _spec_of(site: Site, bundle: str, tasks: Mapping[str, Mapping[str, Any]]) -> SampleSpec:
    """Return the site's task's needs; only images if the bundle does not learn the task."""
    try:
        return choose_task(
            load_bundle(bundle, tasks=tasks).tasks, site.task, classes=site.classes, who=str(site.path)
        ).spec
    except ValueError:
        return SampleSpec(targets=())
