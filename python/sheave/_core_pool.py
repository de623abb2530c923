"""The classes of `sheave._core` that pools have: this module is there for their stubs."""

from sheave._core import PoolFunction, PoolJob, ProcessPool, ProcessQueue, QueueItem, Share

__all__ = ["PoolFunction", "PoolJob", "ProcessPool", "ProcessQueue", "QueueItem", "Share"]
