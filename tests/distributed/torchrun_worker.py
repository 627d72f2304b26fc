"""What torchrun starts: one function of a file of cases, with plain arguments; what it returns is printed.

``torchrun … torchrun_worker.py function '{"argument": 1}'``
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests/support
sys.path.insert(0, str(Path(__file__).parent))

import cases_of_failures

if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        found = getattr(cases_of_failures, sys.argv[1])(**json.loads(sys.argv[2]))
    except SystemExit as left:  # torchrun does not tell the codes when it is itself what was signalled
        sys.stdout.write(f"LEAVES WITH {left.code}\n")
        raise
    sys.stdout.write(f"RESULT {json.dumps([int(os.environ['RANK']), found])}\n")
    sys.stdout.flush()
