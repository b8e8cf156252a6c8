"""Write the folder of a bundle from bundles/<name>.yaml: its configs, card, metadata and licences."""
