"""``mxnet.kvstore``, also called ``mxnet.kv``."""

from sheave.compat.mxnet.kvstore.base import KVStoreBase, TestStore
from sheave.compat.mxnet.kvstore.collective import BytePS, Horovod
from sheave.compat.mxnet.kvstore.kvstore import KVStore, create
from sheave.compat.mxnet.kvstore.kvstore_server import KVStoreServer

__all__ = ["BytePS", "Horovod", "KVStore", "KVStoreBase", "KVStoreServer", "TestStore", "create"]
