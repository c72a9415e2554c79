"""Names and calls in compiled programs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import horovod.jax as hvd

pytestmark = pytest.mark.usefixtures("world")


def names_in(function, *arrays):
    text = jax.jit(function).lower(*arrays).as_text()
    return re.findall(r'names = "([^"]*)"', text)


def test_names_are_positions_in_the_program():
    def step(x):
        return hvd.allreduce(x) + hvd.broadcast(x, 0) + hvd.allreduce(x * 2, name="mine")

    expected = ["allreduce.jit_step.0", "broadcast.jit_step.1", "allreduce.mine"]
    assert names_in(step, jnp.ones(2)) == expected
    assert names_in(step, jnp.ones(3)) == expected


def test_names_of_gradients_follow_from_those_given():
    def step(x):
        return jax.grad(lambda x: jnp.sum(hvd.allreduce(x, name="x") ** 2))(x)

    assert names_in(step, jnp.ones(2)) == ["allreduce.x", "allreduce.x.grad"]


def called(x):
    return jnp.sin(hvd.allreduce(jnp.sin(x), name="x"))


@pytest.mark.parametrize(
    "block",
    [
        called,
        jax.jit(called),
        lambda x: jax.lax.map(called, x[None])[0],
        lambda x: jax.checkpoint(called)(jnp.sin(x)),
    ],
    ids=["call", "jit", "map", "checkpoint"],
)
def test_what_checkpoint_computes_again_has_another_name(block):
    step = jax.value_and_grad(lambda x: jnp.sum(jax.checkpoint(block)(x)))
    assert names_in(step, jnp.ones(2)) == ["allreduce.x", "allreduce.x.2", "allreduce.x.grad"]


def test_the_same_call_in_two_branches_has_one_name():
    inner = jax.jit(called, inline=True)

    def step(x):
        return jax.lax.cond(x[0] > 0, lambda x: inner(x) + 1, lambda x: inner(x) * 2, x)

    assert names_in(step, jnp.ones(2)) == ["allreduce.x", "allreduce.x"]


def test_a_pytree_is_one_call_with_a_name_for_each_array():
    tree = {"a": jnp.ones(2), "b": [jnp.ones(3)]}
    (names,) = names_in(lambda tree: hvd.allreduce(tree, name="t"), tree)
    assert names.split(r"\0A") == ["allreduce.t['a']", "allreduce.t['b'][0]"]
    (names,) = names_in(lambda tree: hvd.grouped_allreduce(tree, name="g"), tree)
    members = ["grouped_allreduce.['a']", "grouped_allreduce.['b'][0]"]
    assert names.split(r"\0A") == ["grouped_allreduce.g", *members]


def test_reductions_may_be_in_place():
    text = jax.jit(hvd.allreduce).lower(jnp.ones(2)).as_text()
    assert "output_operand_alias" in text
    assert "output_operand_alias" not in jax.jit(hvd.allgather).lower(jnp.ones(2)).as_text()
