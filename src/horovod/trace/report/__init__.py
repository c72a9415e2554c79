"""The page of ``horovodrun --report``: from a rank's events to a file for a browser.

In a rank ``digest`` condenses new events, ``history`` keeps what was counted over time, and
``chronicle`` has all that is known of one process and makes bytes of it. In the launcher ``merge``
puts the chronicles of all processes together, and ``page`` renders what comes out. All of them are
free of effects; ``horovod.metrics.sampling`` and ``horovod.launch.jobs.report`` have those.
"""
