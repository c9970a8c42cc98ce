"""A worker of a tf.data service, until its input is closed; it knows TensorFlow and nothing else.

`python tests/pretraining/service_worker.py DISPATCHER`
"""

import sys

import tensorflow as tf

service = tf.data.experimental.service
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
