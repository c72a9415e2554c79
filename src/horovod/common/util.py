"""The import path for what programs ask of an installation; see ``horovod.core.compatibility``."""

from horovod.core.compatibility import cached as _cache
from horovod.core.compatibility import (
    ccl_built,
    check_extension,
    check_installed_version,
    ddl_built,
    extension_available,
    gloo_built,
    gpu_available,
    mpi_built,
    nccl_built,
    split_list,
)
from horovod.core.compatibility import extension_suffix as get_ext_suffix
from horovod.core.compatibility import is_power_of_2 as num_rank_is_power_2
from horovod.core.compatibility import is_version_at_least as is_version_greater_equal_than
from horovod.core.compatibility import op_resolver as get_average_backwards_compatibility_fun
from horovod.core.compatibility import temporary_environment as env

__all__ = [
    "_cache",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
