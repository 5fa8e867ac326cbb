#!/usr/bin/env python3
"""Bytes of activations over budgets, beside PyTorch's checkpointing and torch.compile's budget.

    .deps/venv/bin/python bench/activation_compare.py [--blocks 4] [--width 512] [--side 24]

README.md, beside this file, says what is counted.
"""

import argparse
import json
import os
import pathlib
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BENCH = REPOSITORY / "build/release/bin/atelier-bench-activations"
PLUGIN = REPOSITORY / "build/release/lib/atelier/plugins/qwen_image.so"
TOKENS, RANK = 64, 16
TARGETS = [
    "to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out",
    "img_mlp.net.0.proj", "img_mlp.net.2", "img_mod.1", "txt_mlp.net.0.proj", "txt_mlp.net.2",
    "txt_mod.1"
]
BUDGETS = [i / 20 for i in range(20, -1, -1)]


def atelier(options):
    """What bench_activations.cpp prints, a dictionary a line."""
    command = [BENCH, PLUGIN, options.blocks, options.width, options.heads, options.side, TOKENS]
    done = subprocess.run([str(word) for word in command],
                          check=True,
                          stdout=subprocess.PIPE,
                          env=dict(os.environ, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE"))
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_model(options):
    """The same denoiser in diffusers, with a LoRA of PEFT on the same layers."""
    import diffusers
    import peft
    import torch
    torch.manual_seed(1)
    head = options.width // options.heads
    model = diffusers.QwenImageTransformer2DModel(num_layers=options.blocks,
                                                  num_attention_heads=options.heads,
                                                  attention_head_dim=head,
                                                  joint_attention_dim=48,
                                                  axes_dims_rope=(head // 8, head // 16 * 7,
                                                                  head // 16 * 7))
    model.requires_grad_(False)
    model.add_adapter(peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS))
    return model


def inputs(options):
    import torch
    return dict(hidden_states=torch.randn(1, options.side**2, 64),
                encoder_hidden_states=torch.randn(1, TOKENS, 48),
                encoder_hidden_states_mask=None,
                timestep=torch.full((1, ), 0.5),
                img_shapes=[[(1, options.side, options.side)]],
                return_dict=False)


class Bytes:
    """Bytes that torch's CPU allocator gives and takes back, from the profiler's reports."""

    def __enter__(self):
        import torch
        self.profiler = torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)
        self.profiler.__enter__()
        return self

    def __exit__(self, *error):
        self.profiler.__exit__(*error)

    def curve(self):
        """Bytes that are there after each report, in order."""
        events = [(e.start_ns(), e.nbytes())
                  for e in self.profiler.kineto_results.events() if e.name() == "[memory]"]
        total, curve = 0, []
        for _, nbytes in sorted(events, key=lambda event: event[0]):
            total += nbytes
            curve.append(total)
        return curve


def measure(model, data):
    """Bytes behind the forward pass, and the most until the gradients are there."""
    import torch
    trained = [p for p in model.parameters() if p.requires_grad]

    def forward():
        return model(**data)[0]

    def backward(output):
        return torch.autograd.grad(output.square().sum(), trained, allow_unused=True)

    del_me = backward(forward())  # compiles
    del del_me
    with Bytes() as counted:
        output = forward()
    saved = counted.curve()[-1]
    del output
    with Bytes() as counted:
        gradients = backward(forward())
    del gradients
    return saved, max(counted.curve())


def peers(options):
    """Rows of the peers: name, budget, saved bytes, peak."""
    import torch
    torch.set_num_threads(2)
    data = inputs(options)
    yield "eager", None, *measure(make_model(options), data)
    model = make_model(options)
    model.enable_gradient_checkpointing()
    model.train()
    yield "checkpoint", None, *measure(model, data)
    for budget in BUDGETS:
        # The memory-saving partitioner without code generation: the same tensors are saved.
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = budget
        model = make_model(options)
        for block in model.transformer_blocks:
            block.compile(backend="aot_eager_decomp_partition")
        yield "compile", budget, *measure(model, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--side", type=int, default=24, help="tokens along a side of the image")
    options = parser.parse_args()

    lines = atelier(options)
    ours = {line["budget"]: line for line in lines if line["name"] == "budget"}
    named = {line["name"]: line for line in lines}
    theirs = list(peers(options))
    mib = 1 << 20

    def cells(saved, peak):
        return f"{saved / mib:.1f} | {peak / mib:.1f}"

    print("| budget | Atelier, saved MiB | peak MiB | torch.compile, saved MiB | peak MiB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    by_name = {name: (saved, peak) for name, budget, saved, peak in theirs if budget is None}
    none, checkpoint = named["none"], named["checkpoint"]
    print(f"| keep everything: `none`, eager diffusers | {cells(none['saved'], none['peak'])} | "
          f"{cells(*by_name['eager'])} |")
    for budget in BUDGETS:
        line = ours[budget]
        peer = next((s, p) for _, b, s, p in theirs if b == budget)
        print(f"| {budget:g} | {cells(line['saved'], line['peak'])} | {cells(*peer)} |")
    print(f"| checkpointing: `full`, `torch.utils.checkpoint` | "
          f"{cells(checkpoint['saved'], checkpoint['peak'])} | {cells(*by_name['checkpoint'])} |")
    print(f"\nA plan of 60 blocks with 12 outputs each took {named['plan']['milliseconds']:.1f} ms "
          f"at most, with offloading {named['plan_offload']['milliseconds']:.1f} ms.")


if __name__ == "__main__":
    main()
