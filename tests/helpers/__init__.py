"""What tests and benchmarks share."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository's."""
FIXTURES = ROOT / "fixtures"
