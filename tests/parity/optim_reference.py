#!/usr/bin/env python3
"""Makes data/optim_*.safetensors: 20 steps of each optimizer on fixed gradients, 20 steps of a moving average and
of every learning-rate schedule (torch 2.13.0, safetensors).

Optimizers: torch.optim where it has them (Muon's Newton-Schulz steps in f32, and in bf16 as it ships them, which
is coarse); Lion, LARS and LAMB as their papers write them, in numpy and f64. Each
file holds the first parameters ("first/NAME"), the gradients ("gradient/NAME", leading dim = step) and the
parameters after every step ("after/NAME"); the options stand in the metadata, under the names of OptimizerOptions.
The gradient of "late" is missing in the first 5 steps and in step 12: a parameter without a gradient must not age.

Schedules: torch.optim.lr_scheduler, behind a linear warm-up where the case has one; wsd and inverse_sqrt, which it
has not, are LambdaLR. One tensor "rates/CASE" per case, in f64; the test holds the same table of options.
"""
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file
from torch.optim import lr_scheduler as schedulers

STEPS = 20
SHAPES = {"weight": (5, 3), "bias": (7,), "late": (2, 2)}
MUON_SHAPES = SHAPES | {"wide": (3, 8), "conv": (4, 2, 3, 3), "wte": (6, 4)}
FOLDER = pathlib.Path(__file__).parent / "data"


def is_missing(name, step):
    return name == "late" and (step < 5 or step == 12)


def lion(p, g, state, o, decays, adapts):
    m = state.setdefault("m", np.zeros_like(p))
    update = np.sign(o["beta1"] * m + (1 - o["beta1"]) * g) + decays * p
    state["m"] = o["beta2"] * m + (1 - o["beta2"]) * g
    return p - o["lr"] * update


def lars(p, g, state, o, decays, adapts):
    norm_p, norm_g = np.linalg.norm(p), np.linalg.norm(g)
    rate = o["trust_coefficient"] * norm_p / (norm_g + decays * norm_p) if adapts else 1
    state["v"] = o["momentum"] * state.get("v", 0) + o["lr"] * rate * (g + decays * p)
    return p - state["v"]


def lamb(p, g, state, o, decays, adapts):
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = m = o["beta1"] * state.get("m", 0) + (1 - o["beta1"]) * g
    state["v"] = v = o["beta2"] * state.get("v", 0) + (1 - o["beta2"]) * g**2
    r = (m / (1 - o["beta1"] ** t)) / (np.sqrt(v / (1 - o["beta2"] ** t)) + o["eps"])
    update = r + decays * p
    rate = np.linalg.norm(p) / np.linalg.norm(update) if adapts else 1
    return p - o["lr"] * rate * update


class FromPaper:
    """A rule of a paper with the surface of a torch optimizer."""

    def __init__(self, rule, parameters, options):
        self.rule, self.parameters, self.options = rule, parameters, options
        self.values = [p.detach().numpy().astype(np.float64) for p in parameters]
        self.states = [{} for _ in parameters]

    def step(self):
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                continue
            spared = p.dim() <= 1 and not self.options.get("decay_1d", True)
            decays = 0 if spared else self.options.get("weight_decay", 0)
            gradient = p.grad.numpy().astype(np.float64)
            self.values[i] = self.rule(self.values[i], gradient, self.states[i], self.options, decays, not spared)
            p.data.copy_(torch.from_numpy(self.values[i]))


def from_torch(kind, parameters, options):
    names = {"eps": "eps", "momentum": "momentum", "nesterov": "nesterov", "alpha": "alpha", "centered": "centered"}
    arguments = {names[key]: value for key, value in options.items() if key in names}
    if "beta1" in options:
        arguments["betas"] = (options["beta1"], options["beta2"])
    decay = options.get("weight_decay", 0)
    groups = [{"params": parameters, "weight_decay": decay}]
    if not options.get("decay_1d", True):
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
                  {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0}]
    return kind(groups, lr=options["lr"], foreach=False, **arguments)


BETAS = dict(beta1=0.9, beta2=0.999)
OTHER_BETAS = dict(beta1=0.8, beta2=0.95)
MUON = dict(momentum=0.95, nesterov=True)
TORCH = dict(sgd=torch.optim.SGD, adam=torch.optim.Adam, adamw=torch.optim.AdamW, adagrad=torch.optim.Adagrad,
             rmsprop=torch.optim.RMSprop)
PAPERS = dict(lion=lion, lars=lars, lamb=lamb)
CASES = {
    "sgd": dict(name="sgd", lr=0.1, momentum=0),
    "sgd_momentum": dict(name="sgd", lr=0.1, momentum=0.9),
    "sgd_nesterov_decay": dict(name="sgd", lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    "adam": dict(name="adam", lr=0.01, **BETAS, eps=1e-8),
    "adam_decay": dict(name="adam", lr=0.02, **OTHER_BETAS, eps=1e-6, weight_decay=0.1),
    "adamw": dict(name="adamw", lr=0.01, **BETAS, eps=1e-8),
    "adamw_decay": dict(name="adamw", lr=0.02, **OTHER_BETAS, eps=1e-6, weight_decay=0.1),
    "adamw_decay_2d": dict(name="adamw", lr=0.02, **BETAS, eps=1e-8, weight_decay=0.5, decay_1d=False),
    "adagrad": dict(name="adagrad", lr=0.1, eps=1e-10),
    "adagrad_decay": dict(name="adagrad", lr=0.05, eps=1e-6, weight_decay=0.1),
    "rmsprop": dict(name="rmsprop", lr=0.01, momentum=0, alpha=0.99, eps=1e-8),
    "rmsprop_momentum_decay": dict(name="rmsprop", lr=0.01, momentum=0.9, alpha=0.9, eps=1e-6, weight_decay=0.1),
    "rmsprop_centered": dict(name="rmsprop", lr=0.01, momentum=0, alpha=0.9, eps=1e-4, centered=True),
    "rmsprop_centered_momentum": dict(name="rmsprop", lr=0.01, momentum=0.5, alpha=0.9, eps=1e-4, centered=True),
    "lion": dict(name="lion", lr=0.01, beta1=0.9, beta2=0.99),
    "lion_decay": dict(name="lion", lr=0.02, **OTHER_BETAS, weight_decay=0.5),
    "lars": dict(name="lars", lr=1.0, momentum=0.9, trust_coefficient=0.01),
    "lars_decay": dict(name="lars", lr=2.0, momentum=0.5, trust_coefficient=0.02, weight_decay=0.1),
    "lars_decay_2d": dict(name="lars", lr=0.1, momentum=0, trust_coefficient=0.1, weight_decay=0.1, decay_1d=False),
    "lamb": dict(name="lamb", lr=0.01, **BETAS, eps=1e-6),
    "lamb_decay": dict(name="lamb", lr=0.02, **OTHER_BETAS, eps=1e-6, weight_decay=0.1),
    "lamb_decay_2d": dict(name="lamb", lr=0.02, **BETAS, eps=1e-6, weight_decay=0.1, decay_1d=False),
    "muon": dict(name="muon", lr=0.02, **MUON, muon_scale="original", muon_adamw_rate=0.1, **BETAS, eps=1e-8),
    "muon_bf16": dict(name="muon", lr=0.02, **MUON, muon_scale="original", muon_adamw_rate=0.1, **BETAS, eps=1e-8,
                      bf16=True),
    "muon_decay_2d": dict(name="muon", lr=0.01, momentum=0.8, muon_scale="match_rms_adamw", muon_adamw_rate=1,
                          **OTHER_BETAS, eps=1e-6, weight_decay=0.5, decay_1d=False),
}


class TorchMuon:
    """torch.optim.Muon, which takes matrices only, and AdamW for the rest; in f32 unless the case says bf16."""

    def __init__(self, named, options):
        self.named, self.options = named, options
        self.is_matrix = {name: p.dim() > 1 and "wte" not in name for name, p in named.items()}
        self.matrices = {n: p.detach().flatten(1).requires_grad_() for n, p in named.items() if self.is_matrix[n]}
        decay = options.get("weight_decay", 0)
        self.muon = torch.optim.Muon(list(self.matrices.values()), lr=options["lr"], weight_decay=decay,
                                     momentum=options["momentum"], nesterov="nesterov" in options,
                                     adjust_lr_fn=options["muon_scale"])
        rest = {key: options[key] for key in ("beta1", "beta2", "eps", "decay_1d") if key in options}
        rest |= dict(lr=options["lr"] * options["muon_adamw_rate"], weight_decay=decay)
        self.adamw = from_torch(torch.optim.AdamW, [p for n, p in named.items() if not self.is_matrix[n]], rest)

    def step(self):
        for name, matrix in self.matrices.items():
            gradient = self.named[name].grad
            matrix.grad = None if gradient is None else gradient.flatten(1)
        as_shipped = torch.Tensor.bfloat16
        if "bf16" not in self.options:
            torch.Tensor.bfloat16 = lambda tensor: tensor.to(torch.float32, copy=True)
        self.muon.step()
        torch.Tensor.bfloat16 = as_shipped
        self.adamw.step()
        for name, matrix in self.matrices.items():
            self.named[name].data.copy_(matrix.detach().view_as(self.named[name]))


def make_optimizer(options, named):
    parameters = list(named.values())
    if options["name"] == "muon":
        return TorchMuon(named, options)
    if options["name"] in TORCH:
        return from_torch(TORCH[options["name"]], parameters, options)
    return FromPaper(PAPERS[options["name"]], parameters, options)


def run_optimizer(options):
    generator = torch.Generator().manual_seed(1)
    shapes = MUON_SHAPES if options["name"] == "muon" else SHAPES
    first = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    gradients = {name: torch.randn((STEPS, *shape), generator=generator) for name, shape in shapes.items()}
    parameters = {name: value.clone().requires_grad_() for name, value in first.items()}
    optimizer = make_optimizer(options, parameters)
    after = {name: [] for name in shapes}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = None if is_missing(name, step) else gradients[name][step].clone()
        optimizer.step()
        for name, parameter in parameters.items():
            after[name].append(parameter.detach().clone())
    tensors = {}
    for name in shapes:
        tensors["first/" + name] = first[name]
        tensors["gradient/" + name] = gradients[name]
        tensors["after/" + name] = torch.stack(after[name])
    return tensors


def run_moving_average(decay):
    """Values a parameter takes ("value"), and PyTorch's averages ("after"), which begin as its first value."""
    values = torch.randn((STEPS + 1, 3, 2), generator=torch.Generator().manual_seed(2))
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(values[0].clone())
    model = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    after = []
    for step in range(STEPS + 1):
        module.weight.data.copy_(values[step])
        model.update_parameters(module)
        after.append(model.module.weight.detach().clone())
    return {"value": values, "after": torch.stack(after)}


LR, WARMUP = 0.3, 5
LENGTH = STEPS - WARMUP
METRICS = [1.0, 0.9, 0.95, 0.89995, 0.91, 0.92, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


def warmed_up(make):
    """`make(optimizer)` behind a warm-up of 5 steps that begins at LR / 5 and ends at LR."""

    def both(optimizer):
        rise = schedulers.LinearLR(optimizer, start_factor=1 / WARMUP, end_factor=1, total_iters=WARMUP - 1)
        return schedulers.SequentialLR(optimizer, [rise, make(optimizer)], milestones=[WARMUP])

    return both


def wsd(step):
    return 1 - 0.75 * max(0, step - (LENGTH - 6)) / 6


SCHEDULES = {
    "constant": warmed_up(lambda o: schedulers.ConstantLR(o, factor=1)),
    "step": warmed_up(lambda o: schedulers.StepLR(o, step_size=4, gamma=0.5)),
    "multi_step": lambda o: schedulers.MultiStepLR(o, milestones=[3, 11, 12], gamma=0.2),
    "multi_step_warm": warmed_up(lambda o: schedulers.MultiStepLR(o, milestones=[4, 10], gamma=0.2)),
    "exponential": warmed_up(lambda o: schedulers.ExponentialLR(o, gamma=0.9)),
    "polynomial": warmed_up(lambda o: schedulers.PolynomialLR(o, total_iters=LENGTH, power=2)),
    "linear": lambda o: schedulers.LinearLR(o, start_factor=1, end_factor=0.25, total_iters=STEPS),
    "cosine": warmed_up(lambda o: schedulers.CosineAnnealingLR(o, T_max=LENGTH, eta_min=0.1 * LR)),
    "inverse_sqrt": warmed_up(lambda o: schedulers.LambdaLR(o, lambda s: (WARMUP / (WARMUP + s + 1)) ** 0.5)),
    "wsd": warmed_up(lambda o: schedulers.LambdaLR(o, wsd)),
    "one_cycle": lambda o: schedulers.OneCycleLR(o, max_lr=LR, total_steps=STEPS, pct_start=0.3),
    "one_cycle_fall": lambda o: schedulers.OneCycleLR(o, max_lr=LR, total_steps=STEPS, pct_start=0.0, div_factor=10,
                                                      final_div_factor=100),
    "reduce_on_plateau": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1,
                                                                min_lr=0.2 * LR),
}


def run_schedule(make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = make(optimizer)
    rates = []
    for step in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(METRICS[step])
        elif step + 1 < STEPS:
            scheduler.step()
    return torch.tensor(rates, dtype=torch.float64)


def main():
    made_with = {"made_with": "torch " + torch.__version__}
    for case, options in CASES.items():
        metadata = {key: str(value) for key, value in options.items()} | made_with
        save_file(run_optimizer(options), FOLDER / f"optim_{case}.safetensors", metadata)
    save_file(run_moving_average(0.9), FOLDER / "optim_moving_average.safetensors", {"decay": "0.9"} | made_with)
    rates = {"rates/" + case: run_schedule(make) for case, make in SCHEDULES.items()}
    rates["metrics"] = torch.tensor(METRICS, dtype=torch.float64)
    save_file(rates, FOLDER / "optim_schedules.safetensors", made_with)


if __name__ == "__main__":
    main()
