"""One worker of a MultiWorkerMirroredStrategy training on CPU, profiled by TensorFlow itself for a few steps.

usage: tensorflow_worker.py LOGDIR INDEX PORT,PORT… DELAY_MS MODE
DELAY_MS is the planted fault: how long tf.data's map function sleeps per batch. MODE is ``loop`` (a loop of its own
with step marks), ``unmarked`` (without them) or ``fit`` (Keras with its TensorBoard callback; not with Keras 3, which
does not support the strategy). Needs TensorFlow only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

WARM_UP_STEPS, PROFILED_STEPS = 4, 8
BATCH, FEATURES, CLASSES = 32, 64, 10


def main() -> None:
    logdir, index, ports, delay_ms, mode = sys.argv[1:]
    workers = [f"localhost:{port}" for port in ports.split(",")]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": int(index)}}
    )
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train = {"loop": train_loop, "unmarked": train_loop, "fit": train_with_keras}[mode]
    train(tf, strategy, dataset(tf, float(delay_ms) / 1000), logdir, marked=mode == "loop")
    print("done", flush=True)
    os._exit(0)  # the workers' shutdown waits for each other


def dataset(tf: Any, delay: float) -> Any:
    """Batches of noise; the map function sleeps outside TensorFlow, like a slow decoder or a slow disk."""

    def decode(x: Any) -> Any:
        time.sleep(delay)
        return x

    def slowly(x: Any, y: Any) -> Any:
        decoded = tf.py_function(decode, [x], tf.float32)
        decoded.set_shape(x.shape)
        return decoded, y

    x = tf.random.stateless_normal([1024, FEATURES], seed=(1, 2))
    y = tf.random.stateless_uniform([1024], seed=(3, 4), maxval=CLASSES, dtype=tf.int32)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH, drop_remainder=True)
    batches = batches.map(slowly) if delay else batches
    return batches.prefetch(1)


def network(tf: Any) -> Any:
    return tf.keras.Sequential(
        [tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(256, activation="relu"), tf.keras.layers.Dense(CLASSES)]
    )


def train_loop(tf: Any, strategy: Any, batches: Any, logdir: str, *, marked: bool) -> None:
    with strategy.scope():
        model, optimizer = network(tf), tf.keras.optimizers.SGD(0.01)

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    @tf.function
    def train_step(batch: Any) -> Any:
        return strategy.run(replica_step, args=batch)

    iterator = iter(strategy.distribute_datasets_from_function(lambda _: batches))
    for _ in range(WARM_UP_STEPS):
        train_step(next(iterator))
    tf.profiler.experimental.start(logdir)
    for step in range(PROFILED_STEPS):
        mark = tf.profiler.experimental.Trace("train", step_num=step, _r=1) if marked else contextlib.nullcontext()
        with mark:
            train_step(next(iterator))
    tf.profiler.experimental.stop()


def train_with_keras(tf: Any, strategy: Any, batches: Any, logdir: str, *, marked: bool) -> None:
    del marked
    with strategy.scope():
        model = network(tf)
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    profiled = (WARM_UP_STEPS + 2, WARM_UP_STEPS + 1 + PROFILED_STEPS)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = batches.with_options(options)
    board = tf.keras.callbacks.TensorBoard(logdir, profile_batch=profiled)
    model.fit(batches, steps_per_epoch=profiled[1] + 3, epochs=1, verbose=0, callbacks=[board])


main()
