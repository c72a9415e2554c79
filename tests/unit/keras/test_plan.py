"""Names and groups of gradients."""

from types import SimpleNamespace

import numpy as np

from horovod._keras.optimizer import read_optimizer_values
from horovod._keras.reducer import make_plan

VARIABLES = [object() for _ in range(5)]
INDICES = [10, 11, 12, 13, 14]


def test_one_by_one():
    plan = make_plan("opt", INDICES[:2], VARIABLES[:2], None)
    names = ["allreduce.opt.gradient_10.tensor", "allreduce.opt.gradient_11.tensor"]
    assert plan.singles == [(names[0], 0), (names[1], 1)]
    assert plan.names == names
    assert plan.groups == []


def test_names_say_what_a_variable_is():
    variables = [SimpleNamespace(name=name) for name in ("embeddings", "dense_1/bias_2:0")]
    plan = make_plan("opt", INDICES[:2], variables, 1)
    assert plan.names == ["allreduce.opt.gradient_10.embeddings", "allreduce.opt.gradient_11.bias"]


def test_number_of_groups():
    plan = make_plan("opt", INDICES, VARIABLES, 2)
    assert plan.singles == []
    assert plan.groups == [("opt.group_10", [0, 1, 2]), ("opt.group_13", [3, 4])]
    assert len(make_plan("opt", INDICES, VARIABLES, 9).groups) == 5


def test_lists_of_variables():
    groups = [[VARIABLES[3], VARIABLES[0]], [object()]]
    plan = make_plan("opt", INDICES, VARIABLES, groups)
    assert plan.groups == [("opt.group_13", [3, 0])]
    assert [position for _, position in plan.singles] == [1, 2, 4]


def test_names_that_do_not_fit_one_attribute(tmp_path):
    import h5py

    path = tmp_path / "model.h5"
    assert read_optimizer_values(path) == []
    with h5py.File(path, "w") as file:
        group = file.create_group("optimizer_weights")
        for number in range(3):
            group[f"v{number}"] = np.full(2, number)
        group.attrs["weight_names0"] = [b"v2", b"v0"]
        group.attrs["weight_names1"] = [b"v1"]
    assert [value[0] for value in read_optimizer_values(path)] == [2, 0, 1]
