"""A worker of a tf.data service, until its input is closed; it knows TensorFlow and nothing else.

`python tests/pretraining/service_worker.py DISPATCHER`
"""

import sys

import tensorflow as tf


def main(dispatcher_address):
    service = tf.data.experimental.service
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher_address))
    print("ready", flush=True)
    sys.stdin.read()
    del worker


if __name__ == "__main__":  # pytest imports this file, to look for examples
    main(sys.argv[1])
