"""The frameworks as users have them: real, and kept from calling anybody."""

from __future__ import annotations

import os

import pytest

# Before any of them is imported: they read these when they are.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "ACCELERATE_USE_CPU": "true",
    "PYTORCH_ENABLE_MPS_FALLBACK": "0",
}


@pytest.fixture(autouse=True)
def on_threads(threads_by_default: None) -> None:
    """Where nothing depends on it, workers are threads, which start sooner."""
