"""Keras: one implementation behind ``horovod.keras`` and ``horovod.tensorflow.keras``.

It serves Keras 3 on its TensorFlow, torch and JAX backends, and Keras 2 (``library.py`` says how
they differ). The fronts hand over the Keras module they stand for; whatever depends on a backend is
in ``backend_tensorflow``, ``backend_torch`` or ``backend_jax``, of which only one is imported.
Classes of wrapped optimizers say that they come from this module.
"""
