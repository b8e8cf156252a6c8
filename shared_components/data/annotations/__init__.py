"""Convert annotation files of other programs to masks: one module per format, and one that draws and writes."""
