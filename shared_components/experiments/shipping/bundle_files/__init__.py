"""What all bundles share: templates of their files, from which `bundles/<name>.yaml` makes one bundle's."""
