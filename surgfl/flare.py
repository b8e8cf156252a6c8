"""NVIDIA FLARE's interface to SurgFL's jobs, which needs the extra `fl`.

from nvflare.recipe import SimEnv
from surgfl.flare import SurgFLRecipe

SurgFLRecipe("pfedsis", rounds=2).execute(SimEnv(num_clients=3, workspace_root="flare"))
"""

from shared_components.flare.recipe import SurgFLRecipe

__all__ = ["SurgFLRecipe"]
