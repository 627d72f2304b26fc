from __future__ import annotations

from hypothesis import settings

# A busy machine is no reason to fail.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
