"""The story of a run: it opens, makes steps, ends epochs, decides and closes."""
