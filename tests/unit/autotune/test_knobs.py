from horovod.autotune.knobs import Knob, Surroundings, knobs_for, narrowed, values_of
from horovod.settings import Settings

MB = 1024 * 1024
ONE_HOST = Surroundings(is_native=True, spans_hosts=False)
HOSTS = Surroundings(is_native=True, spans_hosts=True)
ALLOWED = Settings(autotune_link_compression=("int4", "mxfp8", "int8"))


def names(knobs):
    return [knob.name for knob in knobs]


def test_what_the_user_has_given_a_value_is_no_knob():
    every = knobs_for(Settings(), (), ONE_HOST)
    given = ("cycle_time_ms", "allreduce_block_kb", "cache_capacity")
    assert names(every) == [
        *("fusion_threshold_bytes", "cycle_time_ms"),
        *("allreduce_block_kb", "small_allreduce_kb"),
    ]
    left = knobs_for(Settings(), given, ONE_HOST)
    assert names(left) == ["fusion_threshold_bytes", "small_allreduce_kb"]


def test_what_the_surroundings_have_no_use_for_is_no_knob():
    between = knobs_for(Settings(), (), HOSTS)
    assert names(between)[-1] == "small_allreduce_between_hosts_kb"
    carried = knobs_for(Settings(), (), Surroundings(is_native=False, spans_hosts=True))
    assert names(carried) == ["fusion_threshold_bytes", "cycle_time_ms"]


def test_formats_are_tried_only_if_they_are_allowed():
    *others, formats = knobs_for(ALLOWED, (), HOSTS)
    assert tuple(others) == knobs_for(Settings(), (), HOSTS)
    assert formats == Knob("link_compression", ("none", "int8", "mxfp8", "int4"))


def test_formats_are_no_knob_without_a_use_for_them_or_with_a_fixed_one():
    assert knobs_for(ALLOWED, (), ONE_HOST) == knobs_for(Settings(), (), ONE_HOST)
    carried = Surroundings(is_native=False, spans_hosts=True)
    assert knobs_for(ALLOWED, (), carried) == knobs_for(Settings(), (), carried)
    assert "link_compression" not in names(knobs_for(ALLOWED, ("link_compression",), HOSTS))


def test_every_level_is_a_value_of_its_setting():
    for knob in knobs_for(Settings(), (), ONE_HOST):
        assert getattr(Settings(), knob.name) in knob.levels
        assert list(knob.levels) == sorted(knob.levels)


def test_thresholds_that_take_in_a_whole_step_are_one():
    knobs = knobs_for(Settings(), (), ONE_HOST)
    few = narrowed(knobs, values_of(Settings()), 5 * MB)
    assert few[0].levels == (MB, 2 * MB, 4 * MB, 128 * MB)
    assert narrowed(knobs, values_of(Settings()), 400 * MB)[0].levels == knobs[0].levels
    assert "fusion_threshold_bytes" not in names(narrowed(knobs, values_of(Settings()), MB))
