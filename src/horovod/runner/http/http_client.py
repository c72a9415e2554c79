"""The import path for values in a launcher's store; see ``horovod.launch.compat``."""

from horovod.launch.compat.rendezvous_server import get_value as read_data_from_kvstore
from horovod.launch.compat.rendezvous_server import put_value as put_data_into_kvstore

__all__ = ["put_data_into_kvstore", "read_data_from_kvstore"]
