"""A likely cause and a fix for every error code, for `ludus help CODE`."""

EXPLAIN: dict[str, tuple[str, str]] = {
    "E101": (
        "A typing error, or a key of another algorithm.",
        "Take the name suggested; `ludus config schema ALGO` lists every key.",
    ),
    "E102": (
        "Text where a number is expected, or a number where true/false is.",
        "Counts take k, M, G (steps=10M); durations s, m, h, d; booleans true or false.",
    ),
    "E103": (
        "The value lies outside what the setting allows.",
        "The message names the bound or the choices.",
    ),
    "E104": (
        "An option of one kind was set while another kind is chosen.",
        "Set the kind too (algo.replay.kind=prioritized), or drop the option.",
    ),
    "E105": (
        "The file does not exist, or is not valid YAML.",
        "Check the path and the line in the message; indent with spaces.",
    ),
    "E106": (
        "A typing error, or the package that has it was not imported.",
        "`ludus list algos`; for your own: --import your.package.",
    ),
    "E107": (
        "The preset belongs to another algorithm or environment.",
        "`ludus list presets`; --preset none starts from plain defaults.",
    ),
    "E108": (
        "A short name such as `every` exists in two sections.",
        "Write the full key, for example log.every=5k.",
    ),
    "E109": (
        "The module is not on Python's path, or raises when imported.",
        "cd to the folder that holds it, or PYTHONPATH=that folder; python -c 'import your.module' "
        "shows its own error.",
    ),
    "E110": (
        "Files of a run hold *** in the place of secrets, and it was not given this time.",
        "Type the setting as at the start, or export the variable that the message names.",
    ),
    "E111": (
        "A run or checkpoint refers to a module, or passes a path or address to an environment, "
        "and files may come from strangers.",
        "If it is yours: --import MODULE; for paths and for all that the file refers to, --trust.",
    ),
    "E201": (
        "A typing error, a package that is not installed, or wrong constructor arguments.",
        "`ludus list envs`; your own as module:Class; arguments by env.args.NAME=VALUE.",
    ),
    "E202": (
        "reset or step returns something gymnasium does not allow.",
        "`ludus check ENV` says what, in plain words.",
    ),
    "E203": (
        "The declared observation space and what is returned differ.",
        "`ludus check ENV`; for images try env.image_layout=hwc or chw.",
    ),
    "E204": (
        "Q-learning needs discrete actions.",
        "`ludus list algos` shows the actions each algorithm can choose.",
    ),
    "E205": (
        "The environment's own code failed.",
        "Its traceback is in the run's log.txt, and printed with --debug. Correct it, then "
        "`ludus resume RUN`; with env.on_error=restart a run makes it again and goes on.",
    ),
    "E206": (
        "An environment that crashes or hangs, or too little memory for so many actors.",
        "Look at crash/ in the run directory, repair the cause, then `ludus resume RUN`.",
    ),
    "E208": (
        "Too little memory for the replay, or a view or sampler that fails in another process.",
        "`ludus resume RUN` goes on from the last checkpoint; a smaller algo.capacity needs less.",
    ),
    "E301": (
        "No permission, a full disk, or a read-only file system.",
        "Choose another place with --runs-dir DIR.",
    ),
    "E302": (
        "The same run is already being trained.",
        "`ludus status RUN`; stop it with `ludus stop RUN`, or use another --run NAME.",
    ),
    "E303": (
        "A typing error, or another runs directory.",
        "`ludus ls` shows the runs here; --runs-dir DIR looks elsewhere.",
    ),
    "E304": (
        "The run has not saved one yet, or it was rotated away.",
        "The message lists those there are; run.keep=N keeps more.",
    ),
    "E305": (
        "A file changed after it was written: disk trouble, or a copy cut short.",
        "Resume falls back to the newest good one by itself; or pass --checkpoint STEP.",
    ),
    "E306": (
        "The network or environment was changed since.",
        "Use the configuration saved with the checkpoint.",
    ),
    "E307": (
        "A run keeps its settings; only length, logging and evaluation may change.",
        "Start another run, with --init-from RUN if its weights are wanted.",
    ),
    "E310": (
        "The replay is larger than the memory this process may still take.",
        "A smaller algo.capacity, fewer env.num, a higher limit, or a larger machine.",
    ),
    "E311": (
        "The batch or network does not fit the accelerator.",
        "A smaller algo.batch, or run.device=cpu.",
    ),
    "E401": (
        "The learning rate is too high, or rewards are huge.",
        "Look into the run's crash/ folder; lower algo.lr, clip or scale rewards.",
    ),
    "E402": ("The callback's own code failed.", "Its traceback is in the run's log.txt."),
    "E403": (
        "A learner's process was killed, or an environment or the algorithm failed in it.",
        "ludus resume RUN  goes on from the checkpoint; run.learners=1 shows the failure alone.",
    ),
    "E501": (
        "An extra was not installed.",
        "pip install '.[EXTRA]'  in a clone of Ludus, as the message says.",
    ),
    "E502": (
        "The address, the port or the token is wrong, or other versions run there.",
        "ludus head  on the machine where all meet; copy its token file, and  chmod 600  it.",
    ),
}
