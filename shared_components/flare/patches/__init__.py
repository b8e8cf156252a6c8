"""Functions of FLARE that we replace, one file each, and the messages that pass; see `replace`."""
