"""Replacements of FLARE functions: one file per subject; `replace` checks the version and source of each function."""
