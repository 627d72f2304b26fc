from hookline.testing.tiny import TinyModel, tiny_data

__all__ = ["TinyModel", "tiny_data"]
