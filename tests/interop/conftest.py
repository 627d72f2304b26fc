"""Files that import the helpers of another test file are left out where its library is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("lightning") and find_spec("pytorch_lightning") else ["test_lightning_*.py"]
