"""Helpers without imports from other packages here: atomic files, YAML, text checks, arguments, progress, drawing."""
