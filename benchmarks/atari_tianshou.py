"""Training on Pong with tianshou 2.0 through its public interface, for atari_peers.py. It runs in
the peer's own environment, where there is no ludus."""

from __future__ import annotations

import time
from collections.abc import Callable

# Ways to run it: which vector environment, and how many environments.
WAYS = {
    "ppo": {"dummy": ("dummy", 8), "shmem": ("shmem", 8)},
    # An update after every fourth step, whether four steps are of one environment or of four.
    "dqn": {"one": ("dummy", 1), "dummy": ("dummy", 4), "shmem": ("shmem", 4)},
}


def pong():
    import ale_py
    import gymnasium
    from tianshou.env.atari.atari_wrapper import wrap_deepmind

    gymnasium.register_envs(ale_py)  # a worker process has registered nothing yet
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return wrap_deepmind(env, frame_stack=4, scale=False)


def ppo_of(space):
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.env.atari.atari_network import DQNet
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    net = DQNet(
        c=4, h=84, w=84, action_shape=space.n, features_only=True, output_dim_added_layer=512
    )
    actor = DiscreteActor(preprocess_net=net, action_shape=space.n, softmax_output=False)
    return PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=space),
        critic=DiscreteCritic(preprocess_net=net), optim=AdamOptimizerFactory(lr=2.5e-4),
        gamma=0.99, gae_lambda=0.95, eps_clip=0.1, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5,
        advantage_normalization=True, max_batchsize=256,
    )  # fmt: skip


def dqn_of(space):
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.env.atari.atari_network import DQNet

    # At the start of training, where this measures, nearly every action is a random one.
    net = DQNet(c=4, h=84, w=84, action_shape=space.n)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=1.0)
    return DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-4), gamma=0.99, target_update_freq=250
    )


def cycle_of(task: str, algorithm, collector, buffer, n: int) -> Callable[[], int]:
    """One round of collecting and learning; answers the steps it collected."""
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    def collect(steps: int) -> None:
        with torch_train_mode(algorithm.policy, False):
            collector.collect(n_step=steps)

    def ppo() -> int:
        with policy_within_training_step(algorithm.policy):
            collect(128 * n)
            with torch_train_mode(algorithm):
                algorithm.update(buffer=buffer, batch_size=256, repeat=4)
        collector.reset_buffer(keep_statistics=True)
        return 128 * n

    def dqn() -> int:
        with policy_within_training_step(algorithm.policy):
            collect(4)
            with torch_train_mode(algorithm):
                algorithm.update(buffer=buffer, sample_size=32)
        return 4

    if task == "dqn":
        with policy_within_training_step(algorithm.policy):
            collect(1000)
    return ppo if task == "ppo" else dqn


def measure(task: str, way: str, seconds: float) -> list[tuple[float, float, int]]:
    """(seconds, computed seconds, steps) after every round, from the first update on."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, ShmemVectorEnv

    kind, n = WAYS[task][way]
    envs = (ShmemVectorEnv if kind == "shmem" else DummyVectorEnv)([pong for _ in range(n)])
    space = envs.action_space[0]
    size = 128 * n if task == "ppo" else 100_000
    buffer = VectorReplayBuffer(
        size, buffer_num=n, ignore_obs_next=True, save_only_last_obs=True, stack_num=4
    )
    algorithm = (ppo_of if task == "ppo" else dqn_of)(space)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    cycle = cycle_of(task, algorithm, collector, buffer, n)
    steps = cycle()
    marks = [(time.perf_counter(), time.process_time(), steps)]
    # At least so many rounds that the later ones can be told from the first, however slow.
    while marks[-1][0] - marks[0][0] < seconds or len(marks) < 3:
        steps += cycle()
        marks.append((time.perf_counter(), time.process_time(), steps))
    envs.close()
    return marks
