"""The ``groups`` argument: what is taken, what is refused, and what each group holds."""

from __future__ import annotations

import pytest
import tensorflow as tf

from horovod.core import gradient_groups
from horovod.tensorflow.variables import key_of

A, B, C, D = (tf.Variable(float(number), name=name) for number, name in enumerate("abcd"))


def check_groups(groups, num_groups=0):
    return gradient_groups.check_groups(groups, num_groups, key_of)


def split_into_groups(groups, positions, variables):
    keys = {position: key_of(variables[position]) for position in positions}
    return gradient_groups.split_into_groups(groups, keys, key_of)


@pytest.mark.parametrize("groups", [0, -1, 1.5, "two", True, A])
def test_neither_number_nor_lists(groups):
    with pytest.raises(ValueError, match="groups must be a number > 0 or a list"):
        check_groups(groups)


@pytest.mark.parametrize("groups", [[A], [[1.0]], [[A, "b"]], [[tf.constant(1.0)]]])
def test_members_must_be_variables(groups):
    with pytest.raises(ValueError, match="groups must be lists of variables"):
        check_groups(groups)


@pytest.mark.parametrize("groups", [[[A, B], [C, A]], [[A, A]]])
def test_a_variable_in_two_groups(groups):
    with pytest.raises(ValueError, match="one group only; 'a:0' is in groups 0 and"):
        check_groups(groups)


def test_num_groups_is_deprecated():
    with pytest.warns(DeprecationWarning, match="give the number as groups"):
        assert check_groups(None, 3) == 3
    with pytest.warns(DeprecationWarning, match="give the number as groups"):
        assert check_groups([[A]], 3) == [[A]]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [[0, 2, 3]]), (2, [[0, 2], [3]]), (9, [[0], [2], [3]])],
)
def test_a_number_splits_evenly(count, expected):
    groups, single = split_into_groups(count, [0, 2, 3], [A, B, C, D])
    assert sorted(map(len, groups)) == sorted(map(len, expected))
    assert [position for group in groups for position in group] == [0, 2, 3]
    assert single == []


def test_lists_and_the_rest():
    groups = [[C, A], [tf.Variable(9.0)], [B]]
    assert split_into_groups(groups, [0, 2, 3], [A, B, C, D]) == ([[2, 0]], [3])


def test_a_variable_may_be_there_twice():
    assert split_into_groups(None, [0, 1, 2], [A, B, A]) == ([], [0, 1, 2])
    assert split_into_groups(1, [0, 1, 2], [A, B, A]) == ([[0, 1, 2]], [])
    assert split_into_groups([[B, A]], [0, 1, 2], [A, B, A]) == ([[1, 0, 2]], [])
    assert split_into_groups([[B]], [0, 1, 2], [A, B, A]) == ([[1]], [0, 2])


def test_keras_variables_are_members():
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 3))
    kernel, bias = layer.weights
    assert split_into_groups([[bias]], [0, 1], [kernel, bias]) == ([[1]], [0])
    assert check_groups([[kernel], [bias]]) == [[kernel], [bias]]
