"""Exceptions in the last lines that ranks have printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import Script

from horovod.core.base.own_files import OwnFolder
from horovod.trace.failures import described, description_of, failure_of
from horovod.trace.outcome import read_outcome, write_outcome
from horovod.trace.stacks import Call
from horovod.trace.worlds import collect_worlds

PLAIN = """epoch 1
Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    train()
  File "/home/me/train.py", line 19, in train
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/env/lib/python3.11/site-packages/torch/nn/module.py", line 7, in forward
    raise ValueError("bad batch")
ValueError: bad batch
a line of a library that shuts down
"""
CHAINED = """Traceback (most recent call last):
  File "/home/me/data.py", line 3, in read
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/data.py", line 5, in read
    raise my.Error from error
my.Error
"""
LOADER = """Traceback (most recent call last):
  File "/home/me/train.py", line 19, in <module>
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/fetch.py", line 51, in fetch
    data = self.dataset[possibly_batched_index]
  File "/home/me/data.py", line 8, in __getitem__
    raise ValueError("bad batch")
ValueError: bad batch
"""
SYNTAX = """  File "/home/me/train.py", line 4
    if x
        ^
SyntaxError: expected ':'
"""
# The beginning has been dropped.
CUT = PLAIN[PLAIN.index("train()") :]
LOST = """Traceback (most recent call last):
  File "/home/me/train.py", line 8, in work
horovod.errors.PeerLostError: allreduce 'x': rank 1 has shut down
"""
UNDER_TORCH = "".join(f"[rank1]: {line}\n" for line in PLAIN.splitlines())
LOST_TEXT = "rank 1 lost its peer: allreduce 'x': rank 1 has shut down"


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (PLAIN, "rank 1 raised ValueError: bad batch (/home/me/train.py:19)"),
        (CHAINED, "rank 1 raised my.Error (/home/me/data.py:5)"),
        (LOADER, "rank 1 raised ValueError: bad batch (/home/me/data.py:8)"),
        (SYNTAX, "rank 1 raised SyntaxError: expected ':' (/home/me/train.py:4)"),
        (CUT, "rank 1 raised ValueError: bad batch (/home/me/train.py:19)"),
        (LOST, f"{LOST_TEXT} (/home/me/train.py:8)"),
        (LOST.splitlines()[-1], LOST_TEXT),
        (UNDER_TORCH, "rank 1 raised ValueError: bad batch (/home/me/train.py:19)"),
        (f"[rank1]: {LOST.splitlines()[-1]}", LOST_TEXT),
        ("error: no such file\n", ""),
        ("", ""),
    ],
)
def test_the_exception_is_named_with_its_place_in_the_program(printed: str, text: str) -> None:
    assert failure_of(1, 1, printed.encode()).text == text


def test_an_exception_in_a_recording_belongs_to_its_world() -> None:
    call = Call("/home/me/train.py", 19, "train")
    details = [description_of("ValueError", "bad\nbatch", call), "damaged", "[]"]
    recordings = [
        Script(rank, 4).recording(10 + rank, "exception", detail=detail)
        for rank, detail in enumerate(details)
    ]
    last = Script(0, 4).recording(20)
    (world,) = collect_worlds([last, *reversed(recordings)])
    assert world.recordings[0] is last
    assert [failure.text for failure in world.failures] == [
        "rank 0 raised ValueError: bad (/home/me/train.py:19)"
    ]


CAUSE = (
    'HorovodInternalError (MismatchError): grouped_allreduce "gradient.batch'
    + "['params']['encoder']['layers_0']['self_attention']" * 3
    + "['kernel']\": tensor 57 of 148: Mismatched ALLREDUCE tensor shapes: rank 1 sent [1024, 4096]"
    " float32, rank 0 sent [1024, 2048] float32; shapes must match on all ranks"
)
KIND = "jax.errors.JaxRuntimeError"
OF_A_CALLBACK = f"""INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):
  File "/home/me/train.py", line 19, in <module>
  File "/env/lib/python3.11/site-packages/horovod/jax/primitive.py", line 170, in _run_in_callback
RuntimeError: {CAUSE}"""


def test_the_cause_is_in_the_error_of_a_compiled_program() -> None:
    calls = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 19, in <module>\n'
    call = Call("/home/me/train.py", 19, "<module>")
    for message in (f"FAILED_PRECONDITION: {CAUSE}", OF_A_CALLBACK):
        printed = failure_of(1, 1, f"{calls}{KIND}: {message}\n".encode())
        recorded = described(1, description_of(KIND, message, call))
        assert recorded is not None
        for failure in (printed, recorded):
            assert failure.text.endswith(f"{CAUSE} (/home/me/train.py:19)")


ANNOUNCED = [
    (
        """Graph execution error:

Detected at node w defined at (most recent call last):
  File "/home/me/train.py", line 29, in step

  File "/env/lib/python3.11/site-packages/horovod/tensorflow/reductions.py", line 149, in allreduce
    return run(tensor)
2 root error(s) found.
allreduce 'w': Mismatched data types: rank 0 sent [2] float32, rank 1 sent [2] float64
\t [[{{node w}}]] [Op:__inference_step_261]""",
        "Graph execution error: allreduce 'w': Mismatched data types: rank 0 sent [2] float32, "
        "rank 1 sent [2] float64",
    ),
    (
        """in user code:

    File "/home/me/train.py", line 8, in step  *
        tape.gradient(loss, weights)

    ValueError: Horovod has not been initialized; use hvd.init().
""",
        "in user code: ValueError: Horovod has not been initialized; use hvd.init().",
    ),
    (
        """Exception encountered when calling Sequential.call().

\x1b[1mInput 0 of layer 'dense' is incompatible with the layer\x1b[0m

Arguments received by Sequential.call():
  • training=None""",
        "Exception encountered when calling Sequential.call(). "
        "Input 0 of layer 'dense' is incompatible with the layer",
    ),
    (
        "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: [3]\n\tothers",
        "Error(s) in loading state_dict for Linear: size mismatch for weight: [3]",
    ),
    ("expected one of:", "expected one of:"),
]


@pytest.mark.parametrize(("message", "text"), ANNOUNCED)
def test_the_cause_comes_with_the_line_that_announces_it(message: str, text: str) -> None:
    recorded = described(1, description_of("Error", message, Call("/home/me/train.py", 19, "")))
    assert recorded is not None
    # TensorFlow's copy of a function is no place in the program.
    calls = [("/home/me/train.py", 19), ("/tmp/__autograph_generated_file1.py", 14)]
    stack = "".join(f'  File "{path}", line {line}, in step\n' for path, line in calls)
    printed = failure_of(1, 1, f"Traceback (most recent call last):\n{stack}E: {message}".encode())
    for failure in (recorded, printed):
        assert (failure.message, failure.place) == (text, "/home/me/train.py:19")


def test_a_path_below_the_folder_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = f'  File "{tmp_path}/a/train.py", line 19, in f\nValueError\n'
    assert failure_of(1, 1, printed.encode()).place == "a/train.py:19"


def test_lines_are_bounded_and_need_not_be_text() -> None:
    failure = failure_of(0, 1, b"\xff" * 5000 + b"\n" + b"line\n\n" * 500)
    assert len(failure.lines) == 20
    assert max(map(len, failure.lines)) <= 300
    assert failure.kind == ""


def test_an_outcome_keeps_the_failures(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    failure = failure_of(1, 1, PLAIN.encode())
    with OwnFolder(tmp_path) as folder:
        write_outcome(folder, 1, "it failed", [failure])
        found = read_outcome(folder)
        assert found is not None
        assert (found.status, found.text, found.failures) == (1, "it failed", (failure,))
        folder.replace("outcome", json.dumps({"status": 0, "text": "of an older one"}).encode())
        found = read_outcome(folder)
        assert found is not None
        assert found.failures == ()
        for damaged in ([1], [{"rank": "x"}], {"a": 1}, 7):
            fields = {"status": 1, "text": "", "failures": damaged}
            folder.replace("outcome", json.dumps(fields).encode())
            assert read_outcome(folder) is None
