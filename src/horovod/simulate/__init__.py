"""Predict how training scales on a cluster that is not at hand.

``predict`` computes the steps of any number of ranks from the gradients of one, the network and the
engine's costs; docs/simulate.md says how good that is. ``horovodrun --simulate`` prints it.
"""

from horovod.simulate.architectures import ARCHITECTURES
from horovod.simulate.cluster import Cluster, Costs, Network, network_named, network_names, on_cores
from horovod.simulate.failures import Failures, Losses
from horovod.simulate.prediction import Prediction, predict
from horovod.simulate.step import Options, simulate_step
from horovod.simulate.workload import Gradient, Workload, of_model

__all__ = [
    "ARCHITECTURES",
    "Cluster",
    "Costs",
    "Failures",
    "Gradient",
    "Losses",
    "Network",
    "Options",
    "Prediction",
    "Workload",
    "network_named",
    "network_names",
    "of_model",
    "on_cores",
    "predict",
    "simulate_step",
]
