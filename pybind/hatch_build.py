"""Puts the Go binary into the wheel.

The binary is, the first that there is: the file that ``$DSMFS_BINARY`` names,
``../bin/dsmfs`` (``make build``), or what ``go build`` makes of the sources
around this directory. It goes where scripts go, so that ``dsmfs`` is a command after
the installation. Without any the wheel has Python only, and the binary is looked for
when it is needed.
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


class BinaryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the binary to ``build_data`` and tags the wheel with its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find or build the binary; an editable wheel has none."""
        if self.target_name != "wheel" or version == "editable":
            return
        binary = self.find()
        if binary is None:
            self.app.display_warning("no bin/dsmfs, $DSMFS_BINARY or go: the wheel is without the dsmfs binary")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(binary)}"
        build_data["shared_scripts"][str(binary)] = "dsmfs"

    def find(self) -> Path | None:
        """Return the path of the binary, None if there is no way to one."""
        named = os.environ.get("DSMFS_BINARY")
        if named:
            return Path(named).resolve(strict=True)
        top = Path(self.root).parent
        made = top / "bin" / "dsmfs"
        if made.exists():
            return made
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None or not (top / "go.mod").exists():
            return None
        # In the hook's directory below pybind: hatchling reads it after this method has returned.
        built = Path(self.directory) / "dsmfs-binary"
        built.parent.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-trimpath", "-ldflags", f"-s -w -X main.version={self.metadata.version}"]
        subprocess.run(
            [*command, "-o", str(built), "./cmd/dsmfs"],
            cwd=top,
            env={**os.environ, "CGO_ENABLED": "0"},
            check=True,
        )
        self.built = built
        return built

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what find built."""
        built = getattr(self, "built", None)
        if built is not None:
            built.unlink()


def platform(binary: Path) -> str:
    """Return the platform tag of an ELF file for Linux."""
    with open(binary, "rb") as f:
        head = f.read(20)
    machine = struct.unpack_from("<H", head, 18)[0] if head[:4] == b"\x7fELF" and len(head) == 20 else None
    if machine not in MACHINES:
        raise ValueError(f"{binary} is no Linux program of a known machine")
    return MACHINES[machine]
