"""Files that import the helpers of another test file are left out where its library is not installed."""

from importlib.util import find_spec

NEEDS = {
    "composer": ("composer",),
    "lightning": ("lightning", "pytorch_lightning"),
    "torchtnt": ("torchtnt",),
}

collect_ignore_glob = [f"test_{name}_*.py" for name, packages in NEEDS.items() if not all(map(find_spec, packages))]
