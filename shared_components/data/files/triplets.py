"""The 100 action triplets of CholecT45 and CholecT50 (Nwoye et al., Medical Image Analysis 2022) and their components.

Classes of triplets are named "instrument/verb/target", also for a site's own triplets: the original names have commas,
which separate the classes of a checkpoint.
"""

import re
from collections.abc import Sequence

INSTRUMENTS = ("grasper", "bipolar", "hook", "scissors", "clipper", "irrigator")
VERBS = ("grasp", "retract", "dissect", "coagulate", "clip", "cut", "aspirate", "irrigate", "pack", "null_verb")
TARGETS = (
    "gallbladder", "cystic_plate", "cystic_duct", "cystic_artery", "cystic_pedicle", "blood_vessel", "fluid",
    "abdominal_wall_cavity", "liver", "adhesion", "omentum", "peritoneum", "gut", "specimen_bag", "null_target",
)  # fmt: skip

# "instrument verb: targets", by their numbers, in the order of the triplets' ids
_TABLE = """
0 2: 1 0 10; 0 0: 3 2 4 1 0 12 8 10 11 13; 0 8: 0; 0 1: 2 4 1 0 12 8 10 11; 1 3: 7 5 3 2 4 1 0 8 10 11
1 2: 9 3 2 1 0 10; 1 0: 1 8 13; 1 1: 2 4 0 8 10; 2 3: 5 3 2 4 1 0 8 10; 2 5: 5 11; 2 2: 5 3 2 1 0 10 11; 2 1: 0 8
3 3: 10; 3 5: 9 5 3 2 1 8 10 11; 3 2: 1 0 10; 4 4: 5 3 2 4 1; 5 6: 6; 5 2: 2 4 1 0 10; 5 7: 7 4 8; 5 1: 0 8 10
0 9: 14; 1 9: 14; 2 9: 14; 3 9: 14; 4 9: 14; 5 9: 14
"""


TRIPLETS: tuple[tuple[int, int, int], ...] = tuple(
    (int(instrument), int(verb), int(target))
    for instrument, verb, targets in re.findall(r"(\d+) (\d+): ([\d ]+)", _TABLE)
    for target in targets.split()
)
"""(instrument, verb, target) of each triplet, as indices of the three tuples of names."""
NAMES = tuple(f"{INSTRUMENTS[i]}/{VERBS[v]}/{TARGETS[t]}" for i, v, t in TRIPLETS)
COMPONENTS: dict[str, tuple[int, ...]] = {"i": (0,), "v": (1,), "t": (2,), "iv": (0, 1), "it": (0, 2)}
"""Parts of a triplet's name that each component consists of."""


def component_of(names: Sequence[str], component: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the classes of a component of `COMPONENTS`, and the class of each triplet; ValueError for another name."""
    parts = [tuple(name.split("/")) for name in names]
    if wrong := next((name for name, part in zip(names, parts, strict=True) if len(part) != 3), ""):
        raise ValueError(f"class {wrong!r} is no triplet; name it as instrument/verb/target")
    component_names = ["/".join(part[place] for place in COMPONENTS[component]) for part in parts]
    classes = tuple(dict.fromkeys(component_names))
    return classes, tuple(map(classes.index, component_names))
