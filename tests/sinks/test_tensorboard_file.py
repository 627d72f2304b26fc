"""Files of events: what another reader finds in them."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import RecordWriter

from hookline.sinks.tensorboard_file import EventFile, framing


@given(st.binary(max_size=300))
def test_a_record_is_framed_as_tensorboard_does(data: bytes) -> None:
    """A reader leaves out what has a wrong checksum, and all that follows it."""
    expected = BytesIO()
    RecordWriter(expected).write(data)
    assert framing()(data) == expected.getvalue()


@pytest.mark.parametrize("with_extra", [True, False])
def test_tensorboard_reads_the_events_with_and_without_the_library_for_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_extra: bool
) -> None:
    if not with_extra:
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
    file = EventFile(tmp_path, "a1")
    for step in range(3):
        file.append([Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=step)]))])
    file.close()
    found = [event for event in EventFileLoader(str(file.path)).Load() if event.summary.value]
    assert [event.step for event in found] == [0, 1, 2]
