"""What ./eb, the easyblocks and the hooks share: systems as data, the launcher, packages of the operating system."""
