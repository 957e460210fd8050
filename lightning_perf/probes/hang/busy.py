"""Distinguish a thread that waits for the user, compiles or saves from one that hangs."""

from collections.abc import Mapping, Sequence

from lightning_perf.probes.host_lines.calls import OwnCode, line_of
from lightning_perf.probes.host_lines.stacks import Frame

_KNOWN = {
    "a debugger": (
        "pdb.", "bdb.", "ipdb.", "pudb.", "code.interact", "IPython.core.debugger.", "IPython.terminal.debugger.",
        "IPython.terminal.embed.",
    ),
    "compiling": (
        "torch._dynamo.convert_frame.", "torch._inductor.compile_fx.", "torch.utils.cpp_extension.", "triton.compiler.",
    ),
    "saving": ("torch.serialization.", "torch.distributed.checkpoint.", "safetensors."),
}  # fmt: skip
"""Prefixes of ``module.function`` on the stack of any thread: backward compiles in a thread of autograd's."""

_IDE_DEBUGGERS = ("pydevd", "_pydevd", "debugpy")
"""Prefixes on the training thread's stack only: these debuggers have threads of their own, which always wait."""

_PROMPTS = ("getpass.", "ipykernel.kernelbase._input_request")


def busy_reason(own: Sequence[Frame], others: Mapping[str, Sequence[Frame]]) -> str:
    """Return why a training thread without progress does not hang; empty if it may hang.

    ``own`` are its frames, innermost first, ``others`` those of all other threads.
    """
    called = _function_names(own)
    if any(name.startswith(_IDE_DEBUGGERS) for name in called):
        return "a debugger"
    if any(name.startswith(_PROMPTS) for name in called) or _asks_for_input(own):
        return "waiting for input"
    for frames in others.values():
        called += _function_names(frames)
    return next((reason for reason, known in _KNOWN.items() if any(name.startswith(known) for name in called)), "")


def _function_names(frames: Sequence[Frame]) -> list[str]:
    return [f"{names.get('__name__', '')}.{code.co_name}" for code, _, names in frames]


def _asks_for_input(own: Sequence[Frame]) -> bool:
    code, offset, names = own[0]
    call = OwnCode(code, offset, line_of(code, offset), names).call
    return call.rpartition(".")[2] == "input" or "stdin" in call
