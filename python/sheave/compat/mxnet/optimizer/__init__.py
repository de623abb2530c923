"""``mxnet.optimizer``. In a store these run natively where sheave has the rule; see `native`."""

from sheave.compat.mxnet.lr_scheduler import LRScheduler
from sheave.compat.mxnet.optimizer.optimizer import Optimizer, create, register
from sheave.compat.mxnet.optimizer.rules import LAMB, NAG, SGD, AdaGrad, Adam, AdamW, RMSProp, Test
from sheave.compat.mxnet.optimizer.updater import Updater, get_updater

opt_registry = Optimizer.opt_registry

__all__ = [
    "LAMB",
    "NAG",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "LRScheduler",
    "Optimizer",
    "RMSProp",
    "Test",
    "Updater",
    "create",
    "get_updater",
    "opt_registry",
    "register",
]
