"""Stands in for the real package in a tracker's process. FAKE_TRACKER says how it behaves, and
every call it gets is a line of the file FAKE_TRACKER_CALLS."""

import json
import os
import sys
import time

MODE = os.environ.get("FAKE_TRACKER", "")


def note(call, **what):
    with open(os.environ["FAKE_TRACKER_CALLS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"call": call, **what}) + "\n")


def misbehave(where):
    if f"block {where}" == MODE:
        note("blocking", where=where)
        time.sleep(1e6)
    if f"crash {where}" == MODE:
        raise RuntimeError(f"no luck in {where}")


class Run:
    def define_metric(self, name, step_metric=None):
        note("define_metric", name=name, step_metric=step_metric)

    def log(self, values, step=None):
        misbehave("log")
        note("log", values=values, step=step)

    def finish(self, exit_code=None):
        misbehave("finish")
        note("finish", exit_code=exit_code)
        print("fake tracker says goodbye", file=sys.stderr)


def init(**how):
    misbehave("init")
    note("init", **how)
    return Run()
