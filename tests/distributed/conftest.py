"""``ranks``: real processes that run one function each, forked from one warm process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rank_server import RankServer


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


@pytest.fixture(params=["few", "many"])
def either_ranks(ranks: RankServer, request: pytest.FixtureRequest) -> Iterator[RankServer]:
    """Once with votes that go directly from rank to rank, once with those of many ranks, which gloo adds up."""
    ranks.as_if_many = request.param == "many"
    yield ranks
    ranks.as_if_many = False
