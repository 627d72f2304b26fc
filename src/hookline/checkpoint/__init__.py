"""Checkpoints on disk: written atomically, verified when they are read, and without pickle."""

from hookline.checkpoint.inspect import Checkpoint
from hookline.checkpoint.lock import FolderLock
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.snapshot import About, Snapshot
from hookline.checkpoint.store import Rejected, Store

__all__ = ["About", "Checkpoint", "FolderLock", "Manifest", "Rejected", "SavePlan", "Snapshot", "Store"]
