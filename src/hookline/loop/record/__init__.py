"""What a run writes besides checkpoints, and what it says."""
