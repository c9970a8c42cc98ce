"""Several workers in their own processes act as one device, and none waits for one that is gone."""

import contextlib
import json
import signal
import socket

import pytest
import tensorflow as tf

from roformer_tf.__main__ import main
from roformer_tf.pretraining import strategies
from tests.pretraining import run_processes as runs

# Two workers add up in another order than one device.
TOLERANCE = 1e-6
CLUSTER = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}


def free_ports(count):
    """Ports of this machine that nobody uses now."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]


@pytest.fixture
def start_workers(tmp_path):
    """Function that starts the workers of a run on this machine, each with a log of its own.

    The command of each worker has its own further `arguments`. Workers that are left at the end of
    the test are killed.
    """
    started = []

    def start(settings, output, arguments=((), ())):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(arguments))]
        for index, own in enumerate(arguments):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            log, environment = tmp_path / f"worker-{index}.log", {"TF_CONFIG": json.dumps(config)}
            started.append(runs.start(settings, output, *own, environment=environment, log=log))
        return started[-len(arguments) :]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_two_workers_are_one_device_also_after_losses(tmp_path, start_workers):
    """With clipping, weight decay, uneven masks; one worker gets SIGTERM, later one is killed."""
    settings = runs.write_run(
        tmp_path / "texts", lengths=(16, 40), steps=8, dropout=0.0, deterministic=False
    )
    output, alone = tmp_path / "run", tmp_path / "alone"
    assert main(["pretrain", str(settings), "--output", str(alone), "--quiet"]) == 0

    # SIGTERM to one: all save and leave after the same step
    workers = start_workers(settings, output)
    assert runs.wait_for(lambda: runs.num_logged_steps(output) >= 1, workers[0])
    workers[1].send_signal(signal.SIGTERM)
    assert [runs.finish(worker, timeout=120) for worker in workers] == [143, 143]
    left_after = runs.newest_step(output)
    assert left_after == runs.num_logged_steps(output) >= 1

    # SIGKILL to one: the other ends with a message, within a minute
    workers = start_workers(settings, output)
    in_second_stage = max(9, left_after + 1)
    assert runs.wait_for(lambda: runs.num_logged_steps(output) >= in_second_stage, workers[0])
    runs.kill(workers[1])
    assert runs.finish(workers[0], timeout=60) == 4
    messages = (tmp_path / "worker-0.log").read_text()
    assert "error: Another worker of this run has ended or cannot be reached" in messages
    assert "start all workers again" in messages and str(output / "checkpoints") in messages
    assert "Traceback" not in messages

    workers = start_workers(settings, output)
    assert [runs.finish(worker) for worker in workers] == [0, 0]
    runs.check_complete(output, settings)
    assert runs.distance(runs.variables(output), runs.variables(alone)) < TOLERANCE


@pytest.mark.slow
def test_workers_that_do_not_fit_together_say_so(tmp_path, start_workers):
    settings = runs.write_run(tmp_path / "texts")
    workers = start_workers(settings, tmp_path / "run", arguments=[(), ("--seed", "6")])
    assert [runs.finish(worker) for worker in workers] == [2, 2]
    for number in (0, 1):
        messages = (tmp_path / f"worker-{number}.log").read_text()
        assert "error: The workers do not start from the same state" in messages
        assert "Traceback" not in messages


@pytest.mark.parametrize(
    ("task", "chief"),
    [
        ({"type": "worker", "index": 0}, True),
        ({"type": "worker", "index": 1}, False),
        ({"type": "chief", "index": 0}, True),
    ],
)
def test_one_worker_writes(monkeypatch, task, chief):
    cluster = {**CLUSTER, **({"chief": ["10.0.0.3:2222"]} if task["type"] == "chief" else {})}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert strategies.num_workers() == sum(len(addresses) for addresses in cluster.values())

    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

    assert strategies.is_chief(Strategy) == chief


def test_without_other_workers_no_error_means_a_lost_one(monkeypatch):
    error = tf.errors.UnavailableError(
        None,
        None,
        'Graph execution error:\n\n  File "a.py", line 3\n\nCollective ops is aborted by: '
        "recvmsg:Connection reset by peer\nAdditional information\n"
        "The error could be from a previous operation. Restart your program",
    )
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not strategies.lost_worker(error)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER}))
    assert strategies.lost_worker(error)
    assert not strategies.lost_worker(tf.errors.InvalidArgumentError(None, None, "wrong"))
    assert not strategies.lost_worker(tf.errors.ResourceExhaustedError(None, None, "no memory"))
    assert strategies.reason_of(error) == "recvmsg:Connection reset by peer Additional information"


def test_wrong_devices_are_an_error(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="`cpu_replicas` must be .*Received: cpu_replicas=0"):
        strategies.choose_strategy(cpu_replicas=0)
    for wrong in ("{cluster", '{"cluster": {"worker": 3}}'):
        monkeypatch.setenv("TF_CONFIG", wrong)
        with pytest.raises(ValueError, match="TF_CONFIG must be JSON such as"):
            strategies.choose_strategy()
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER}))
    with pytest.raises(ValueError, match="either `cpu_replicas` or TF_CONFIG"):
        strategies.choose_strategy(cpu_replicas=2)
