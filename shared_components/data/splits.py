"""Official splits, few-shot lists and left-out videos of cholecystectomies, and the videos that weights have seen.

Cholec80, CholecT45, CholecT50 and CholecSeg8k use the same numbers for the same operations: video68 is VID68. So do
PSI-AVA and GraSP. `gynsurg_folds` reads GynSurg's folds from tables.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shared_components.common.counted import counted
from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.data.site import Site

_TABLES = read_own_yaml(beside(__file__, "splits.yaml"))
CHOLECT45_FOLDS = msgspec.convert(_TABLES["cholect45_folds"], tuple[tuple[int, ...], ...])
"""Official cross-validation (Nwoye and Padoy, arXiv 2204.05235); fold 5 tests in FL-EndoViT."""
CHOLEC80 = {"train": tuple(range(1, 41)), "validation": tuple(range(41, 49)), "test": tuple(range(49, 81))}
"""Split of TeCNO and EndoViT, 40 / 8 / 32; captions of FL-EndoViT have 31."""
FEW_SHOT = msgspec.convert(_TABLES["few_shot"], dict[str, dict[int, tuple[tuple[int, ...], ...]]])
"""Training videos by task and number of videos, for three runs (FL-EndoViT, Table 9). The paper calls the lists of the
runs distinct, but they overlap: all runs of four videos of phases have video 28."""
LEFT_OUT = {"segmentation": (12, 17, 27, 52), "triplets": CHOLECT45_FOLDS[4], "phases": tuple(range(41, 81))}
"""Videos of Cholec80 that pre-training leaves out, by downstream task (EndoViT's three variants)."""
SEEN = "seen_videos"
"""Key of a checkpoint's header: the videos that its weights have seen, by data set, as JSON."""
_SAME = {name: "cholec80" for name in ("cholec80", "cholec80_frames", "cholect45", "cholect50", "cholecseg8k")} | {
    "psi_ava": "grasp"  # cases 1 to 21 of GraSP
}


def named(dataset: str, videos: Iterable[int]) -> list[str]:
    """Return a data set's names of cholecystectomies."""
    return [f"{'VID' if dataset.startswith('cholect') else 'video'}{video:02d}" for video in videos]


def choose_few_videos(videos: Sequence[str], count: int, seed: int, *, dataset: str = "", task: str = "") -> list[str]:
    """Choose a few of a site's training videos, in their order; ValueError if there are fewer than ``count``.

    For seeds 1 to 3, choose FL-EndoViT's videos of runs 1 to 3 (`FEW_SHOT`) if the site trains on all of them. Else
    rank videos by the SHA-256 of ``<seed>/<video>``, so a smaller choice is part of a larger choice. An empty
    ``dataset``, for rendered videos, and other tasks have no published lists.
    """
    if not 1 <= count <= len(videos):
        raise ValueError(f"trains on {counted(len(videos), 'video')}, and {count} are needed; give it more videos")
    published = FEW_SHOT.get(task, {}).get(count, ()) if _SAME.get(dataset) == "cholec80" else ()
    listed = named(dataset, published[seed - 1]) if 1 <= seed <= len(published) else []
    ranked = sorted(videos, key=lambda video: hashlib.sha256(f"{seed}/{video}".encode()).digest())
    chosen = listed if listed and set(listed) <= set(videos) else ranked[:count]
    return [video for video in videos if video in chosen]


def remove_test_videos(videos: Iterable[str], dataset: str, task: str) -> list[str]:
    """Return a data set's videos without the videos that pre-training for a task leaves out, see `LEFT_OUT`."""
    tested = {_key("cholec80", str(number)) for number in LEFT_OUT[task]}
    return [video for video in videos if _key(dataset, video) not in tested]


def seen_videos_entry(videos: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the checkpoint header entry for the videos, by data set, that its weights have seen."""
    return {SEEN: json.dumps({dataset: sorted(names) for dataset, names in sorted(videos.items())})}


def refuse_seen_videos(header: Mapping[str, str], dataset: str, videos: Iterable[str], *, start: str) -> None:
    """Raise a ValueError if a checkpoint ``start`` has seen a test video, by its header's `SEEN`, if any."""
    if SEEN not in header:
        return
    try:
        known = {_key(data, name) for data, names in json.loads(header[SEEN]).items() for name in names}
    except (ValueError, AttributeError, TypeError) as error:
        what = f"{SEEN} in its header cannot be read ({error})"
        raise ValueError(f"{start}: {what}; make the checkpoint again") from error
    if seen := [name for name in videos if _key(dataset, name) in known]:
        what = f"has seen {len(seen)} of the test's videos of {dataset} ({', '.join(seen[:5])})"
        raise ValueError(f"{start} {what}; start from other weights, or test on other videos")


def refuse_seen_test(seen: str, site: Site, *, start: str) -> None:
    """Raise a ValueError if the weights of a checkpoint ``start`` have seen whole test videos of a site.

    ``seen`` is the value of `SEEN` in the checkpoint's header, or empty. Rendered videos, a hospital's own videos, and
    parts of videos pass: their names mean nothing elsewhere.
    """
    test = site.split.get("test", ()) if site.public else ()
    whole = [part.video for part in test if not part.start and part.stop is None]
    refuse_seen_videos({SEEN: seen} if seen else {}, site.dataset, whole, start=start)


def seen_videos_after_training(seen: str, site: Site) -> dict[str, str]:
    """Return the header entry of weights after training: ``seen`` and the site's public training videos."""
    return add_seen_videos(seen, [part for part in (site, site.added) if part is not None and part.public])


def add_seen_videos(seen: str, sites: Iterable[Site]) -> dict[str, str]:
    """Return the header entry for the ``seen`` videos and the training videos of sites; empty without videos."""
    videos: dict[str, set[str]] = {dataset: set(names) for dataset, names in json.loads(seen or "{}").items()}
    for site in sites:
        videos.setdefault(site.dataset, set()).update(part.video for part in site.split.get("train", ()))
    return seen_videos_entry(videos) if any(videos.values()) else {}


def _key(dataset: str, video: str) -> tuple[str, str]:
    """Return a key that is equal for the same operation in all data sets."""
    family = _SAME.get(dataset, dataset)
    numbers = re.findall(r"\d+", video)
    return family, str(int(numbers[0])) if family == "cholec80" and numbers else video
