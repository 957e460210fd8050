"""PD335: an operator whose result another one gives in less time."""

from lightning_perf.records import CheaperKind, CheaperOperator, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, share_of_step, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import number_of, percent

_FIXES: dict[CheaperKind, tuple[str, str, str]] = {
    "transform": (
        "pad to {better:,} elements, whose prime factors are small",
        "with {better:,} elements, these operators run",
        "n = scipy.fft.next_fast_len(n_signal + n_filter - 1, real=True)\nspectrum = torch.fft.rfft(signal, n=n)",
    ),
    "convolution": (
        "convolve by Fourier transforms",
        "by Fourier transforms, these operators run",
        "x = F.pad(signal, (padding, padding))\n"
        "n = scipy.fft.next_fast_len(x.shape[-1] + kernel.shape[-1] - 1, real=True)\n"
        'product = torch.einsum("bif,oif->bof", torch.fft.rfft(x, n), torch.fft.rfft(kernel, n).conj())\n'
        "# with one channel per group: product = torch.fft.rfft(x, n) * torch.fft.rfft(kernel[:, 0], n).conj()\n"
        "convolved = torch.fft.irfft(product, n)[..., : x.shape[-1] - kernel.shape[-1] + 1] + bias[:, None]",
    ),
    "interpolation": (
        "interpolate behind the convolution, which gives the same",
        "in the other order, these operators run",
        'logits = F.interpolate(self.classifier(x), size=size, mode="bilinear")',
    ),
    "sort": (
        "use topk",
        "with topk, these operators run",
        "nearest = distances.topk(k, largest=False).indices  # instead of distances.argsort()[..., :k]",
    ),
    "penalty": (
        "let the optimizer decay the weights, or add the penalty's gradient to theirs",
        "as a weight decay, these operators run",
        "optimizer = SGD(self.parameters(), lr, weight_decay=2 * self.penalty)  # or, before an optimizer's step:\n"
        "torch._foreach_add_([p.grad for p in parameters], parameters, alpha=2 * self.penalty)",
    ),
    "order": (
        "multiply the other two matrices first",
        "in the other order, these products run",
        'y = a @ (b @ c)  # instead of a @ b @ c, or torch.einsum("ij,jk,kl->il", a, b, c) without opt_einsum',
    ),
    "diagonal": (
        "multiply element by element and add up",
        "element by element, these products run",
        "scores = (a * b).sum(-1)  # instead of torch.diag(a @ b.T)",
    ),
    "rows": (
        "select the rows that are needed before the layer",
        "with these rows alone, these operators run",
        "scores = self.head(hidden[:, -1])  # instead of self.head(hidden)[:, -1]\n"
        "y = y.index_add(0, rows, gates[rows] * expert(x[rows]))  # rows = gates[:, 0].nonzero()[:, 0]; instead of\n"
        "# y = y + gates * expert(x), if most gates are 0",
    ),
    "function": ("call {function}", "as one function, these operators run", "y = {function}"),
    "max_norm": (
        "limit the norms of all rows at once",
        "for all rows at once, this runs",
        "rows = index.unique()  # with Embedding(..., max_norm=None)\n"
        "with torch.no_grad():\n"
        "    found = embedding.weight[rows]\n"
        "    embedding.weight[rows] = found * (max_norm / found.norm(dim=1, keepdim=True)).clamp(max=1.0)",
    ),
    "factor": (
        "use the factor instead of decomposing its product",
        "without decomposing the product, these operators run",
        "MultivariateNormal(mean, scale_tril=factor)  # if it is triangular, with a positive diagonal; or, if it has "
        "few columns,\n"
        "LowRankMultivariateNormal(mean, factor, diagonal)  # for factor @ factor.mT + torch.diag_embed(diagonal)",
    ),
    "kernel": (
        "convolve along one dimension at a time",
        "along one dimension at a time, these convolutions run",
        "x = F.conv2d(x, column, padding=(p, 0), groups=x.shape[1])  # n × 1; column * row is the kernel, p its "
        "padding\nx = F.conv2d(x, row, padding=(0, p), groups=x.shape[1])  # 1 × n",
    ),
    "scatter": (
        "use {function}, which takes an index for each row",
        "with an index for each row, these operators run",
        "index = index[:, 0]  # one for each row; in more than two dimensions, index[:, 0, 0]\n"
        "y = y.{function}\n"
        "# of a mean: degree = torch.bincount(index, minlength=len(y)).clamp(min=1)[:, None]; or, with include_self,\n"
        "# degree = 1 + torch.bincount(index, minlength=len(y))[:, None]",
    ),
    "packed": (
        "give the layer the padded batch, and take each sequence's state at its length",
        "over the padded batch, it runs",
        "states, _ = self.lstm(x)  # x and lengths as given to pack_padded_sequence, with batch_first=True\n"
        "last = states[torch.arange(len(lengths)), lengths - 1]  # instead of hidden[-1]\n"
        "# instead of pad_packed_sequence, whose padding is 0:\n"
        "padding = torch.arange(states.shape[1], device=x.device) >= lengths.to(x.device)[:, None]\n"
        "states = states.masked_fill(padding[..., None], 0.0)",
    ),
}
"""Kind → what to do, the beginning of the sentence on the measured speedup, and code."""


@replay_rule("PD335", "cheaper-operator")
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    found = required(
        model_profile_of(session).cheaper, "no operator of the sampled step has a known cheaper replacement"
    )
    share = share_of_step(steady, found.total_s)
    if is_cpu_run(session) and share < LOW_SHARE:
        return None
    summary, effect, code = _FIXES[found.kind]
    return Diagnosis(
        f"{found.site or 'The model'} {_symptom(found)}",
        (
            fact("such operators per step", found.n_operators, "count"),
            # Following each operator inside a packed layer lengthens it.
            fact("their time per step", found.total_s, "s") if found.total_s and found.kind != "packed" else None,
        ),
        fix(
            summary.format(better=found.better, function=found.function),
            "minutes",
            "numerics",
            code=code.replace("{function}", found.function),
        ),
        effect.format(better=found.better),
        replayed_as="cheaper",
        at_stake=min(1.0, share),
        other_phases=(),
        unmeasured=None if found.kind == "packed" else "low",  # with much padding, packing is faster
    )


def _symptom(found: CheaperOperator) -> str:
    shape = " × ".join(f"{size:,}" for size in found.shape)
    if found.kind == "transform":
        return f"computes Fourier transforms of {found.size:,} elements, a number with a large prime factor"
    if found.kind == "convolution":
        return f"convolves signals of {shape} with kernels of {found.size:,} elements directly"
    if found.kind == "interpolation":
        return f"interpolates {found.size:,} channels to {shape}, of which a convolution then makes {found.better:,}"
    if found.kind == "sort":
        return f"sorts {found.size:,} elements in each row of {shape}, of which at most {found.better:,} are read"
    if found.kind == "order":
        times = f"{number_of(found.size / found.better, 'time')} as many multiplications as in the other order"
        return f"multiplies three matrices through an intermediate of {shape}, with {times}"
    if found.kind == "diagonal":
        return f"computes products of {shape}, of which only the diagonal is read"
    if found.kind == "rows":
        return f"computes {found.size:,} rows of {found.shape[-1]:,} elements, of which {found.better:,} are read"
    if found.kind == "function":
        return f"computes {found.function.partition('(')[0]} of {shape} in several operators"
    if found.kind == "max_norm":
        return f"limits the norms of {found.size:,} rows of a table of {shape} one by one (max_norm)"
    if found.kind == "factor":
        factor = f"{found.size:,} columns and a diagonal" if found.better else "a triangular factor, which is known"
        return f"decomposes a matrix of {shape} that was computed from {factor}"
    if found.kind == "kernel":
        return f"convolves with kernels of {shape} that are outer products"
    if found.kind == "scatter":
        return f"adds rows of {shape} to {found.size:,} rows with an index for each element"
    if found.kind == "packed":
        padding = percent(1 - found.better / found.size)
        return f"runs {found.function} over packed sequences, which have {padding} padding as a batch of {shape} steps"
    return "adds the squares of parameters to the loss"
