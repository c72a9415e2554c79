"""Pairs for ``SparkConf.set(*pair)``: how Spark treats failing tasks, executors and nodes.

Spark restarts the task of a failed worker of an elastic job, on an executor and a node that these
settings allow.
"""

_LARGEST = "2147483647"
# Spark requires that the limits of a node and of its executors differ.
_LARGEST_OF_A_NODE = "2147483646"

_MAX_FAILURES = "spark.task.maxFailures"
_ENABLED = "spark.blacklist.enabled"
_STAGE_EXECUTOR = "spark.blacklist.stage.maxFailedTasksPerExecutor"
_STAGE_NODE = "spark.blacklist.stage.maxFailedExecutorsPerNode"
_TASK_EXECUTOR = "spark.blacklist.task.maxTaskAttemptsPerExecutor"
_TASK_NODE = "spark.blacklist.task.maxTaskAttemptsPerNode"
_APP_EXECUTOR = "spark.blacklist.application.maxFailedTasksPerExecutor"
_APP_NODE = "spark.blacklist.application.maxFailedExecutorsPerNode"

# Restart the task however often its worker fails.
SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = (_MAX_FAILURES, _LARGEST)

# The settings below have an effect only if this is enabled.
SPARK_CONF_BLACKLIST_DISABLED = (_ENABLED, "false")
SPARK_CONF_BLACKLIST_ENABLED = (_ENABLED, "true")

# Limits of one stage, which is one call of ``run_elastic``.
SPARK_CONF_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, _LARGEST)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE = (_STAGE_NODE, _LARGEST_OF_A_NODE)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_STAGE_NODE, "1")

# Limits of one task, which is one worker and its replacements.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_TASK_EXECUTOR, _LARGEST)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_TASK_EXECUTOR, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_TASK_EXECUTOR, "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_TASK_NODE, _LARGEST_OF_A_NODE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_TASK_NODE, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_TASK_NODE, "1")

# Limits of the whole application.
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, _LARGEST)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, _LARGEST)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, "1")

# Spark's defaults.
SPARK_CONF_DEFAULT_VALUES = {
    _MAX_FAILURES: "4",
    _ENABLED: "false",
    _STAGE_EXECUTOR: "2",
    _STAGE_NODE: "2",
    _TASK_EXECUTOR: "1",
    _TASK_NODE: "2",
    _APP_EXECUTOR: "2",
    _APP_NODE: "2",
}

__all__ = [name for name in dir() if name.startswith("SPARK_CONF_")]
