"""The object store: one interface over a folder (default) and an S3-compatible store, and what is built directly on it.

Trusted roles import this; workers have no store credentials and never do.
"""

from shoal.storage.store import (
    BadKey,
    LocalDiskFull,
    NotFound,
    ObjectInfo,
    Store,
    StoreUnavailable,
    find,
    not_told,
    open_below_prefix,
    open_island_store,
    open_store,
    open_store_of,
)

__all__ = [
    "BadKey",
    "LocalDiskFull",
    "NotFound",
    "ObjectInfo",
    "Store",
    "StoreUnavailable",
    "find",
    "not_told",
    "open_below_prefix",
    "open_island_store",
    "open_store",
    "open_store_of",
]
