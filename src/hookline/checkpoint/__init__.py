"""Checkpoints on disk: saved whole or not at all, checked when they are read, and never a pickle."""

from hookline.checkpoint.inspect import Checkpoint
from hookline.checkpoint.lock import FolderLock
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.snapshot import About, Snapshot
from hookline.checkpoint.store import Rejected, Store

__all__ = ["About", "Checkpoint", "FolderLock", "Manifest", "Rejected", "SavePlan", "Snapshot", "Store"]
