"""The page of ``horovodrun --report``: from a rank's events to a file for a browser.

In a rank ``summary`` condenses new events and ``process_record`` collects all data of the process.
In the launcher ``merge`` combines the records of all processes and ``page`` renders the result. All
are pure; ``horovod.metrics.sampling`` and ``horovod.launch.jobs.report`` have the effects.
"""
