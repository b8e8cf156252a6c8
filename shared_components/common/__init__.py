"""What knows nothing else of ours: whole files, YAML, text from strangers, argument checks, progress, drawing."""
