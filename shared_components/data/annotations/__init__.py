"""Convert annotation files of other programs to masks: one module per format; `convert` draws and writes."""
