"""ramgate: builds that never run out of memory."""
