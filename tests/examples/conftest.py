"""The examples are scripts: their folder is on the path while their tests are collected and run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
