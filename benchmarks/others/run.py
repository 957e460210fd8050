"""Run trainings of others without PerfDoctor and with it, and compare losses, weights, random states and warnings.

    git clone --depth 1 --branch 2.6.5 https://github.com/Lightning-AI/pytorch-lightning FOLDER/pytorch-lightning
    git clone https://github.com/Lightning-AI/tutorials FOLDER/tutorials
    git -C FOLDER/tutorials checkout 15817658
    pip install torchvision transformers torch_geometric gymnasium matplotlib seaborn pandas ipython
    python benchmarks/others/run.py FOLDER [NAME ...]

The scripts are not edited: their Trainer gets fewer batches and more callbacks, and random data of the same shape takes
the place of downloads. Outputs are in FOLDER/runs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import random
import runpy
import subprocess
import sys
import types
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

BASICS, TEMPLATES = "pytorch-lightning/examples/pytorch/basics", "pytorch-lightning/examples/pytorch/domain_templates"
SHORT = {"max_epochs": 2, "limit_train_batches": 150, "limit_val_batches": 10, "limit_test_batches": 20}
TRAININGS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "autoencoder": (f"{BASICS}/autoencoder.py", [], SHORT),
    "classifier": (f"{BASICS}/backbone_image_classifier.py", [], SHORT),
    "gan": (f"{TEMPLATES}/generative_adversarial_net.py", [], {**SHORT, "limit_train_batches": 40}),
    "finetuning": (f"{TEMPLATES}/computer_vision_fine_tuning.py", ["fit"], {**SHORT, "limit_train_batches": 6}),
    "ppo": (
        f"{TEMPLATES}/reinforce_learn_ppo.py",
        ["--env", "CartPole-v1", "--steps_per_epoch", "512", "--batch_size", "64"],
        {"max_epochs": 4},
    ),
    "hello": (
        "tutorials/lightning_examples/mnist-hello-world/hello-world.py",
        [],
        {**SHORT, "limit_train_batches": 100},
    ),
    "gnn": ("tutorials/course_UvA-DL/06-graph-neural-networks/overview.py", [], {"max_epochs": 40}),
    "bert": (str(Path(__file__).with_name("bert.py")), [], {**SHORT, "limit_train_batches": 25}),
}
LEGACY, FITS = ("hello", "gnn"), {"gnn": 2}  # those of pytorch_lightning; after so many fits the script may end
VARIANTS: dict[str, dict[str, Any] | None] = {
    "bare": None,
    "defaults": {},
    "autopilot": {"autopilot": "exact"},
    "apply": {"apply": ["progress-refresh=20", "log-every-n=100"]},
}
SEEN: dict[str, Any] = {"losses": [], "fits": [], "warnings": []}


def digest(value: Any) -> str:
    data = value.detach().contiguous().view(-1).numpy().tobytes() if torch.is_tensor(value) else pickle.dumps(value)
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def streams() -> list[str]:
    return [digest(torch.get_rng_state()), digest(np.random.get_state()), digest(random.getstate())]


def patch_trainer(namespace: Any, settings: dict[str, Any], arguments: dict[str, Any] | None, fits: int) -> None:
    """Limit the Trainer, add callbacks, and record losses, weights and random states."""
    init, fit = namespace.Trainer.__init__, namespace.Trainer.fit

    class Recorder(namespace.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            SEEN["losses"].append((digest(loss) if torch.is_tensor(loss) else repr(loss), streams()[0]))

    @functools.wraps(init)  # LightningCLI reads the signature
    def limited(self: Any, **kwargs: Any) -> None:
        callbacks = kwargs.get("callbacks") or []
        callbacks = [*(callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]), Recorder()]
        if arguments is not None:
            home = "lightning_perf.pytorch_lightning" if namespace.__name__ == "pytorch_lightning" else "lightning_perf"
            callbacks.append(__import__(home, fromlist=["PerfDoctor"]).PerfDoctor(**arguments))
        init(self, **{**kwargs, "accelerator": "cpu", "devices": 1, **settings, "callbacks": callbacks})

    @functools.wraps(fit)
    def recorded(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        fit(self, model, *args, **kwargs)
        weights = {name: digest(value) for name, value in model.state_dict().items() if torch.is_tensor(value)}
        SEEN["fits"].append({"weights": weights, "streams": streams(), "attributes": sorted(vars(self))})
        if len(SEEN["fits"]) == fits:
            raise SystemExit(0)

    namespace.Trainer.__init__, namespace.Trainer.fit = limited, recorded


def replace_downloads() -> None:
    """Give what the scripts download random contents of the same shape, and gymnasium the API of gym before 0.26."""
    import gymnasium
    import torch_geometric.loader  # noqa: F401
    from PIL import Image
    from torch_geometric import datasets as graphs
    from torch_geometric.transforms import RandomNodeSplit
    from torchvision import datasets, models

    generator = np.random.default_rng(0)

    def mnist(self: Any) -> Any:
        size = 60_000 if self.train else 10_000
        images = generator.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        return torch.from_numpy(images), torch.from_numpy(generator.integers(0, 10, size))

    def images(download_root: str, **_: Any) -> None:
        for number in range(128):
            split, kind = ("validation" if number % 4 == 0 else "train"), ("cats", "dogs")[number // 4 % 2]
            path = Path(download_root) / "cats_and_dogs_filtered" / split / kind / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375)).save(path)

    def planetoid(**_: Any) -> Any:
        split = RandomNodeSplit(num_val=500, num_test=1000)
        return graphs.FakeDataset(1, 2708, 4, 1433, num_classes=7, task="node", transform=split)

    def no_download(*_: Any, **__: Any) -> None:
        raise urllib.error.HTTPError("", 404, "not downloaded", None, None)  # type: ignore[arg-type]

    class OldEnv(gymnasium.Wrapper):  # type: ignore[type-arg]
        def reset(self, **_: Any) -> Any:
            return self.env.reset()[0]

        def step(self, action: Any) -> Any:
            state, reward, is_terminated, is_truncated, info = self.env.step(action)
            return state, float(reward), is_terminated or is_truncated, info

    def make(name: str) -> Any:
        env = gymnasium.make(name)
        env.reset(seed=0)
        return OldEnv(env)

    datasets.MNIST._load_data, datasets.MNIST._check_exists = mnist, lambda self: True
    datasets.utils.download_and_extract_archive = images
    graphs.Planetoid = planetoid
    resnet50 = models.resnet50
    models._api.BUILTIN_MODELS["resnet50"] = lambda weights=None, **kwargs: resnet50(weights=None, **kwargs)
    urllib.request.urlretrieve = no_download  # type: ignore[assignment]
    gym = types.ModuleType("gym")
    vars(gym).update(make=make, spaces=gymnasium.spaces, Env=gymnasium.Env)
    sys.modules["gym"] = gym


def run_one(folder: Path, name: str, variant: str) -> None:
    script, arguments, settings = TRAININGS[name]
    warnings.showwarning = lambda message, kind, *_, **__: SEEN["warnings"].append(f"{kind.__name__}: {message}")
    replace_downloads()
    namespace = __import__("pytorch_lightning" if name in LEGACY else "lightning.pytorch", fromlist=["Trainer"])
    patch_trainer(namespace, settings, VARIANTS[variant], FITS.get(name, 0))
    namespace.seed_everything(1, verbose=False)
    sys.argv = [str(folder / script), *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    Path("seen.json").write_text(json.dumps({**SEEN, "streams": streams(), "threads": torch.get_num_threads()}))


def main() -> None:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if names[:1] == ["--one"]:
        run_one(folder, *names[1:])
        return
    for name in names or TRAININGS:
        seen: dict[str, Any] = {}
        for variant in VARIANTS:
            run = folder / "runs" / name / variant
            run.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, str(folder), "--one", name, variant]
            with (run / "log.txt").open("w") as log:
                environment = {**os.environ, "MPLBACKEND": "Agg"}
                code = subprocess.run(command, cwd=run, env=environment, stdout=log, stderr=log, check=False).returncode
            seen[variant] = json.loads((run / "seen.json").read_text()) if code == 0 else None
            bare, found = seen["bare"], seen[variant]
            differs = [key for key in bare if bare[key] != found[key]] if bare and found else [f"exit code {code}"]
            print(
                f"{name:12} {variant:10} {len(found['losses']) if found else 0:5} steps",
                *(differs or ["identical"]),
                flush=True,
            )


if __name__ == "__main__":
    main()
