"""Tools to test callbacks: tiny data, a recorder, a driver, a contract, child processes."""

from hookline.testing.contract import CALLBACK_RULES, check_callback
from hookline.testing.drive import Driven, drive
from hookline.testing.processes import run_script, start_script
from hookline.testing.recorder import Recorder
from hookline.testing.tiny import TinyModel, tiny_data

__all__ = [
    "CALLBACK_RULES",
    "Driven",
    "Recorder",
    "TinyModel",
    "check_callback",
    "drive",
    "run_script",
    "start_script",
    "tiny_data",
]
