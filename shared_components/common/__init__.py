"""Modules that import nothing else of ours: atomic files, YAML, foreign text, argument checks, progress, drawing."""
