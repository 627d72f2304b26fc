"""Callbacks of Hugging Face transformers in a run of Hookline."""

from hookline.interop.transformers.callback import TransformersAdapter

__all__ = ["ADAPTER"]

ADAPTER = TransformersAdapter
