"""Each rank computes in pieces of its own size, and all have the gradient of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest


def test_ranks_with_less_memory_have_smaller_pieces_and_the_same_weights(ranks: Any) -> None:
    found = ranks.values("cases_of_micro_batches.py:pieces", 2, strategy="auto")
    assert [its["size True"] for its in found] == [4, 2]
    assert [its["size False"] for its in found] == [None, None]
    assert found[0]["limited True"] == found[1]["limited True"]
    assert found[0]["limited True"] == pytest.approx(found[0]["limited False"], abs=2e-5)


def test_batch_norms_that_wait_for_all_ranks_are_refused(ranks: Any) -> None:
    """Ranks with different numbers of pieces would wait for each other without end."""
    found = ranks.values("cases_of_micro_batches.py:synchronized", 2)
    assert all("the model has SyncBatchNorm" in error for error in found)
