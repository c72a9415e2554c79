"""Jobs in Kubernetes: manifests, which ``horovodrun`` prints, and what runs in their pods.

``options.py`` reads the command line, ``manifest.py`` and ``mpijob.py`` write the objects. In each
pod of an Indexed Job ``pod.py`` is what ``horovodrun`` is on one machine; ``meeting.py`` makes the
pods one job.
"""
