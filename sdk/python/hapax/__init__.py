# SPDX-License-Identifier: Apache-2.0
"""Hapax: each logical request takes effect once. README.md is the manual in 60 seconds.

Functions, jobs and steps go through a local `hapax door` (connect()). hapax.postgres and hapax.http need none: they are
for handlers behind a gate or a consumer, and for clients.
"""
from ._calls import AsyncOp, Bytes, Dataclass, Hapax, Happened, Json, Op, connect
from ._door import VERSION as __version__
from .errors import (BadKey, ClaimLost, Expired, Failed, Gone, HapaxError, Indeterminate, InFlight, Invalid, Limited,
                     Mismatch, MissingKey, MissingOwner, NotRun, StoreDown, TooLarge, Unknown)

__all__ = [
    "AsyncOp", "BadKey", "Bytes", "ClaimLost", "Dataclass", "Expired", "Failed", "Gone", "Hapax", "HapaxError",
    "Happened", "InFlight", "Indeterminate", "Invalid", "Json", "Limited", "Mismatch", "MissingKey", "MissingOwner",
    "NotRun", "Op", "StoreDown", "TooLarge", "Unknown", "__version__", "connect",
]
