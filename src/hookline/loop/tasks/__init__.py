"""Tasks: what is done with each batch."""
