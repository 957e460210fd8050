"""Load lightning-perf into the user's Python processes: this folder comes first on PYTHONPATH.

Every Python that such a process starts runs this file, also those that never train, so it imports no module that Python
has not loaded by then, not even ``typing``. It imports the ``sitecustomize`` that it shadows, removes its folder from
``sys.path`` (the environment keeps it, for child processes), and waits for Lightning's Trainer to be imported.
Nothing here may raise.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False

import os
import sys

_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_HERE = os.path.dirname(os.path.abspath(__file__))
_JOB = "LIGHTNING_PERF_JOB"  # names the job file; see lightning_perf/trials/job.py
_ONLY_MEASURE = "LIGHTNING_PERF_ONLY_MEASURE"  # set if the user's training must not run without measuring


def _is_here(folder):
    return bool(folder) and os.path.abspath(folder) == _HERE


def _gave_up(error):
    """Report the error; the user's training continues, unless it only runs to be measured."""
    line = " ".join(str(error).split())[:300]
    print(f"lightning-perf: not added to this process: {type(error).__name__}: {line}", file=sys.stderr, flush=True)
    if os.environ.get(_ONLY_MEASURE):
        _note("refused")
        os._exit(70)


def _note(event):
    """Add a line to the job's events, which explain why no training was measured."""
    try:
        with open(os.path.join(os.path.dirname(os.environ[_JOB]), "events"), "a", encoding="utf-8") as file:
            file.write(f"{event} {os.getpid()}\n")
    except OSError:
        pass


class _Loader:
    """Loads the module that defines Trainer by its own loader, then wraps Trainer."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.__dict__["loader"], name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _note("lightning")
        try:
            from lightning_perf.trials.inside import enter

            enter(module)
        except Exception as error:  # noqa: BLE001 - reported; the user's training goes on
            _gave_up(error)


class _Finder:
    """Finds the modules that define Trainer by the other finders, and replaces their loader."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _TRAINERS:
            return None
        for finder in sys.meta_path:
            find = None if finder is _Finder else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def _import_shadowed():
    """Import the ``sitecustomize`` that this one shadows, if any; Python reports its errors.

    ``__import__`` loads no module of ``importlib``, and asks the same finders that Python would have asked.
    """
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)  # another one: this folder is no longer on sys.path
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)  # Python expects the module that it is importing there


def _end_soon():
    """End the process after all exit handlers, because Python takes a second to finalize torch."""
    inside = sys.modules.get("lightning_perf.trials.inside")
    if inside is not None:
        inside.end_if_over()


sys.path[:] = [folder for folder in sys.path if not _is_here(folder)]
if os.environ.get(_JOB):
    _note("python")
    sys.meta_path.insert(0, _Finder)
    if os.environ.get(_ONLY_MEASURE):
        import atexit

        atexit.register(_end_soon)  # the first to be registered is the last to run
_import_shadowed()
