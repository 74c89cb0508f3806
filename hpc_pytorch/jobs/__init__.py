"""Jobs: --job and --job-status; and what else reads a prefix: --check, --outdated and --uninstall."""
