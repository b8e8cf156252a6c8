"""Run and deploy federations with NVIDIA FLARE; the only package that imports nvflare."""
