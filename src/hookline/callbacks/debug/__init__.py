"""Callbacks for looking inside a run."""

from hookline.callbacks.debug.lambda_callback import LambdaCallback

__all__ = ["LambdaCallback"]
