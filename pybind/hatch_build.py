"""Puts the Go binary into the wheel, and gives the wheel its version.

The binary is the file that ``$DSMFS_BINARY`` names, else what ``make build`` makes of the sources around
this directory, with the library for ``dsmfs run`` in it, else ``../bin/dsmfs``. It goes where scripts go, so that ``dsmfs``
is a command after the installation. Without any the wheel has Python only, and the binary is looked for
when it is needed. Both have the version that ``../scripts/version.sh`` prints.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: The e_machine of ELF files, and what Python calls the platform.
MACHINES = {62: "linux_x86_64", 183: "linux_aarch64", 243: "linux_riscv64"}


TOP = Path(__file__).resolve().parents[1]


def version() -> str:
    """Return the version of the tree, or of the sdist that this is in."""
    script, told = TOP / "scripts" / "version.sh", Path(__file__).resolve().with_name("PKG-INFO")
    if told.exists():
        return next(line.split()[1] for line in told.read_text().splitlines() if line.startswith("Version:"))
    if script.exists():
        return subprocess.check_output([script], text=True).strip()
    return "0.0.0+unknown"


class BinaryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the binary to ``build_data`` and tags the wheel with its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find or build the binary; an editable wheel has none."""
        if self.target_name != "wheel" or version == "editable":
            return
        binary = self.find()
        if binary is None:
            self.app.display_warning(
                "no go and make, $DSMFS_BINARY or bin/dsmfs: the wheel is without the dsmfs binary"
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(binary)}"
        build_data["shared_scripts"][str(binary)] = "dsmfs"

    def find(self) -> Path | None:
        """Return the path of the binary, None if there is no way to one."""
        named = os.environ.get("DSMFS_BINARY")
        if named:
            return Path(named).resolve(strict=True)
        made = TOP / "bin" / "dsmfs"
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/go/bin"])
        if (TOP / "Makefile").exists() and shutil.which("go", path=path) and shutil.which("make", path=path):
            if not shutil.which("gcc", path=path):
                self.app.display_warning("no gcc: the dsmfs binary is without the library for 'dsmfs run'")
            subprocess.run(["make", "build"], cwd=TOP, env={**os.environ, "PATH": path}, check=True)
        return made if made.exists() else None


def platform(binary: Path) -> str:
    """Return the platform tag of an ELF file for Linux."""
    with open(binary, "rb") as f:
        head = f.read(20)
    machine = struct.unpack_from("<H", head, 18)[0] if head[:4] == b"\x7fELF" and len(head) == 20 else None
    if machine not in MACHINES:
        raise ValueError(f"{binary} is no Linux program of a known machine")
    return MACHINES[machine]
