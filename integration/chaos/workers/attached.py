"""The sum of cells.py by programs that attach."""

from typing import Any

import dsmfs

from integration.chaos.workers.cells import OWN, STRIDE, Sum
from integration.chaos.workers.worker import Refused


class Attached(Sum):
    """Every worker adds one to some cells that all share, and to one of its own."""

    name = "attached"
    area: dsmfs.Area | None = None

    def add(self, cells: list[int]) -> dict[str, Any]:
        """Add one and sync; the answer is the own cell, and in s what the others hold then."""
        if self.area is None:
            try:
                self.area = dsmfs.open(self.path(self.name), dtype="i8", plane="memory")
            except (OSError, dsmfs.Error) as e:
                raise Refused(f"open: {e}") from e
        at, own = self.area.array, OWN + self.number
        for cell in [*(c * STRIDE for c in cells), own]:
            at[cell] += 1
        self.area.sync()
        return {"v": int(at[own]), "s": [int(at[c * STRIDE]) for c in cells]}
