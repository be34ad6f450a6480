"""Where and with what a run was made."""

import datetime
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from eqsat.bench.contender import Device
from eqsat.bench.peer_functions import versions
from eqsat.specs import ParallelProcessingUnit

ROOT = Path(__file__).resolve().parent.parent


def environment(
    spec: ParallelProcessingUnit, device: Device, commit: str | None = None
) -> dict[str, Any]:
    """Spec, device, libraries, commit and date, for JSON. `commit`: in place of git's."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or git_commit(),
        "spec": {
            "name": spec.name,
            "fingerprint": spec.fingerprint,
            "architecture": spec.architecture,
        },
        "device": device.describe(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "engine": versions("egglog"),
    }


def git_commit(root: Path = ROOT) -> str:
    """The commit of the checkout, with "+" for changed files; "unknown" outside one."""
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root:
            return "unknown"
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        return _git(root, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def command_line() -> str:
    """What the user asked for."""
    return " ".join(["eqsat-bench", *sys.argv[1:]])
