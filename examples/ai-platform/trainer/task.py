"""A chief hands steps to workers, parameter servers hold the weights: as programs for AI Platform were written.

TF_CONFIG says who this process is. It knows nothing of cloudgpu.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

SLOPE, OFFSET = 3.0, -1.0
ROUND = 25


def serve(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Run a worker or parameter server: wait for the chief's orders until the process is ended."""
    spec = cluster.cluster_spec()
    server = tf.distribute.Server(spec, job_name=cluster.task_type, task_index=cluster.task_id, protocol="grpc")
    print(f"{cluster.task_type} {cluster.task_id} serves", flush=True)
    server.join()


def train(cluster: tf.distribute.cluster_resolver.ClusterResolver, steps: int, job_dir: str) -> None:
    """Train as the chief, which coordinates the others."""
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        slope, offset = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step(seed: tf.Tensor) -> tf.Tensor:
        x = tf.random.stateless_uniform([64], [seed, 0], -1.0, 1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * x + offset - (SLOPE * x + OFFSET)))
        for variable, gradient in zip((slope, offset), tape.gradient(loss, (slope, offset)), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    for first in range(0, steps, ROUND):
        losses = [coordinator.schedule(step, args=(tf.constant(seed),)) for seed in range(first, first + ROUND)]
        coordinator.join()
        loss = max(float(one.fetch()) for one in losses)
        print(f"step {first + ROUND}  loss {loss:.5f}  y = {slope.numpy():.3f} x {offset.numpy():+.3f}", flush=True)
    print(f"results would go to {job_dir}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--job-dir", default="nowhere", help="as the service passed it")
    arguments = parser.parse_args()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type == "chief":
        train(cluster, arguments.steps, arguments.job_dir)
    else:
        serve(cluster)


if __name__ == "__main__":
    main()
