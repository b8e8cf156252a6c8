"""Files of a run: its folder, state files, provenance, progress and removal."""
