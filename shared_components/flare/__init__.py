"""Carries the federation with NVIDIA FLARE, and deploys it; the only room that imports nvflare."""
