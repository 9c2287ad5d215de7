"""Memory shared between machines, as NumPy arrays and torch tensors.

>>> import dsmfs
>>> with dsmfs.open("/mnt/dsm/w.npy") as w:  # doctest: +SKIP
...     w.array[:] += gradient
...     w.sync()

An area is a file of a dsmfs mount. :func:`open` and :func:`create` give its memory: at the speed of DRAM if
the daemon hands it out (the memory plane), else through the kernel's page cache.
"""

from typing import Any

from ._area import Area
from ._binary import find_binary
from ._cluster import Cluster, cluster
from ._errors import (
    AccessError,
    ClosedError,
    DirectoryError,
    DisconnectedError,
    Error,
    ExistsError,
    FaultError,
    FormatError,
    NodeError,
    NotFiniteError,
    NotFoundError,
    NotMountedError,
    OperationError,
    PlaneUnavailableError,
    TimedOutError,
    VersionDroppedError,
)
from ._filesystem import AreaInfo, Areas, Conflict, Filesystem, Member, mount
from ._group import Counter, Group, Meeting, group
from ._open import PlaneWarning, create, open
from ._tensors import MovedWarning
from ._versions import Snapshot, Version, version_time

__all__ = [
    "AccessError",
    "Area",
    "AreaInfo",
    "Areas",
    "ClosedError",
    "Cluster",
    "Conflict",
    "Counter",
    "DirectoryError",
    "DisconnectedError",
    "Error",
    "ExistsError",
    "FaultError",
    "Filesystem",
    "FormatError",
    "Group",
    "Meeting",
    "Member",
    "MovedWarning",
    "NodeError",
    "NotFiniteError",
    "NotFoundError",
    "NotMountedError",
    "OperationError",
    "PlaneUnavailableError",
    "PlaneWarning",
    "Snapshot",
    "TimedOutError",
    "Version",
    "VersionDroppedError",
    "cluster",
    "create",
    "find_binary",
    "group",
    "mount",
    "open",
    "version_time",
]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib.metadata

    try:  # here, because it takes longer than all other imports
        return importlib.metadata.version("dsmfs")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0+unknown"
