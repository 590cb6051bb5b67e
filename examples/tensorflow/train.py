"""Two workers fit one line by synchronous data-parallel training; TF_CONFIG says who they are.

python train.py --steps 50
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

SLOPE, OFFSET = 3.0, -1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}'))["task"]
    with strategy.scope():
        slope, offset = tf.Variable(0.0), tf.Variable(0.0)
    numbers = tf.random.Generator.from_seed(task["index"])  # each worker has data of its own

    def replica_step() -> tf.Tensor:
        x = numbers.uniform([64], -1.0, 1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * x + offset - (SLOPE * x + OFFSET)))
        for variable, own in zip((slope, offset), tape.gradient(loss, (slope, offset)), strict=True):
            context = tf.distribute.get_replica_context()
            variable.assign_sub(0.1 * context.all_reduce(tf.distribute.ReduceOp.MEAN, own))
        return loss

    @tf.function
    def step() -> tf.Tensor:
        return strategy.run(replica_step)

    for number in range(1, steps + 1):
        loss = step()
        if number % 10 == 0 and task["index"] == 0:
            print(f"step {number}  loss {float(loss):.5f}  y = {slope.numpy():.3f} x {offset.numpy():+.3f}", flush=True)


if __name__ == "__main__":
    main()
