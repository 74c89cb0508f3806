"""What the hooks do."""
