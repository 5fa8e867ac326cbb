"""A tiny Wan2.2-S2V: its denoiser written down from the published maths, called as the published file
calls it, with rows in the published order (clip, reference, frames before)."""

import json

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import Wav2Vec2Config, Wav2Vec2Model

import tiny_models
import wan_models

MOTION, NEW, DROPPED = 73, 80, 3  # frames before a piece, frames of one, those that the first one loses
STATES, SOUND_WIDTH, TOKENS, RATE = 4, 48, 4, 16
WIDTH, HEADS, LAYERS, HEARS = 32, 2, 3, (0, 2)
AXES = (8, 4, 4)  # channels of a head for frames, rows and columns
MLP, WAVES = 80, 64


def config():
    """What stands beside the published file."""
    return dict(_class_name="WanModel_S2V", model_type="s2v", dim=WIDTH, num_heads=HEADS, num_layers=LAYERS, ffn_dim=MLP,
                freq_dim=WAVES, in_dim=16, out_dim=16, text_len=512, eps=1e-6, audio_dim=SOUND_WIDTH,
                num_audio_token=TOKENS, audio_inject_layers=list(HEARS), cond_dim=16, enable_adain=True,
                adain_mode="attn_norm", zero_timestep=True, enable_motioner=False, enable_framepack=True,
                framepack_drop_mode="padd", add_last_motion=True, zero_init=True, enable_tsm=False,
                motion_token_num=1024, trainable_token_pos_emb=False)


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def norm(x, eps=1e-6):
    return functional.layer_norm(x, x.shape[-1:], eps=eps)


class Norm(nn.Module):

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))


class Attention(nn.Module):

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm_q, self.norm_k = Norm(), Norm()

    def forward(self, x, y, turn=lambda heads: heads):
        """Rows [..., N, D] look at rows [..., M, D]."""
        def heads(rows):
            return rows.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        q = turn(heads(rms(self.q(x), self.norm_q.weight)))
        k = turn(heads(rms(self.k(y), self.norm_k.weight)))
        seen = functional.scaled_dot_product_attention(q, k, heads(self.v(y)))
        return self.o(seen.transpose(-2, -3).flatten(-2))


class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.modulation = nn.Parameter(torch.zeros(1, 6, WIDTH))
        self.self_attn, self.cross_attn = Attention(), Attention()
        self.norm3 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, MLP), nn.GELU("tanh"), nn.Linear(MLP, WIDTH))

    def forward(self, x, levels, text, turn):
        """x: [N, D]; levels: [N, 6, D], of the noise level of each row."""
        m = (self.modulation + levels).unbind(1)
        y = norm(x) * (1 + m[1]) + m[0]
        x = x + self.self_attn(y, y, turn) * m[2]
        x = x + self.cross_attn(self.norm3(x), text)
        return x + self.ffn(norm(x) * (1 + m[4]) + m[3]) * m[5]


class Causal(nn.Module):

    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(channels, out, 3, stride=stride)

    def forward(self, x):
        """[B, T, C]: a layer that sees the past, normed; the first moment is also what was before."""
        y = self.conv(functional.pad(x.mT, (2, 0), mode="replicate")).mT
        return y


class SoundEncoder(nn.Module):

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1, STATES, 1, 1) * 0.01)
        encoder = nn.Module()
        encoder.conv1_local = Causal(SOUND_WIDTH, WIDTH // 4 * TOKENS)
        encoder.conv1_global = Causal(SOUND_WIDTH, WIDTH // 4)
        encoder.conv2 = Causal(WIDTH // 4, WIDTH // 2, 2)
        encoder.conv3 = Causal(WIDTH // 2, WIDTH, 2)
        encoder.final_linear = nn.Linear(WIDTH, WIDTH)
        encoder.padding_tokens = nn.Parameter(torch.zeros(1, 1, 1, WIDTH))
        self.encoder = encoder

    def forward(self, states):
        """states: [S, n, C] of the frames that are made. Returns [T, D] and [T, L + 1, D]."""
        e = self.encoder
        weights = functional.silu(self.weights).view(-1, 1, 1)
        states = torch.cat([states[:, :1].repeat(1, MOTION, 1), states], 1)
        mixed = (states * weights / weights.sum()).sum(0)[None]

        def rest(x):
            for layer in (e.conv2, e.conv3):
                x = layer(functional.silu(norm(x)))
            return functional.silu(norm(x))[:, (MOTION + 3) // 4:]
        several = torch.cat(e.conv1_local(mixed).chunk(TOKENS, 2))
        tokens = rest(several).transpose(0, 1)
        padding = e.padding_tokens[0].expand(len(tokens), 1, WIDTH)
        return e.final_linear(rest(e.conv1_global(mixed)))[0], torch.cat([tokens, padding], 1)


class Modulation(nn.Module):

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)


def spread(first, last, count):
    return np.linspace(first, last, count).astype(int)


def angles(frames, rows, columns):
    """[frames x rows x columns, 8] of positions."""
    def axis(positions, channels):
        rates = 10000.0 ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
        return torch.as_tensor(np.asarray(positions, np.float64))[:, None] * rates
    size = (len(frames), len(rows), len(columns), -1)
    return torch.cat([axis(frames, AXES[0])[:, None, None].expand(size), axis(rows, AXES[1])[None, :, None].expand(size),
                      axis(columns, AXES[2])[None, None].expand(size)], -1).flatten(0, 2)


def turner(turns):
    cos, sin = turns.cos().float(), turns.sin().float()

    def turn(heads):
        a, b = heads[..., 0::2], heads[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return turn


def tokens(layer, x):
    """Rows of [C, T, h, w], and how many along each axis."""
    y = layer(x[None])[0]
    return y.flatten(1).mT, tuple(y.shape[1:])


class SpeechDit(nn.Module):

    def __init__(self):
        super().__init__()

        def patches(*kernel):
            return nn.Conv3d(16, WIDTH, kernel, stride=kernel)
        self.patch_embedding, self.cond_encoder = patches(1, 2, 2), patches(1, 2, 2)
        self.text_embedding = nn.Sequential(nn.Linear(wan_models.TEXT_WIDTH, WIDTH), nn.GELU("tanh"),
                                            nn.Linear(WIDTH, WIDTH))
        self.time_embedding = nn.Sequential(nn.Linear(WAVES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Module()
        self.head.modulation = nn.Parameter(torch.zeros(1, 2, WIDTH))
        self.head.head = nn.Linear(WIDTH, 64)
        self.casual_audio_encoder = SoundEncoder()
        self.audio_injector = nn.Module()
        self.audio_injector.injector = nn.ModuleList([Attention() for _ in HEARS])
        self.audio_injector.injector_adain_layers = nn.ModuleList([Modulation() for _ in HEARS])
        self.trainable_cond_mask = nn.Embedding(3, WIDTH)
        self.frame_packer = nn.Module()
        self.frame_packer.proj = patches(1, 2, 2)
        self.frame_packer.proj_2x = patches(2, 4, 4)
        self.frame_packer.proj_4x = patches(4, 8, 8)

    def packed(self, motion, height, width):
        """Rows of the frames before, [16, 19, h, w], and their angles."""
        packer = self.frame_packer
        rows, turns = [], []
        for layer, frames, places in ((packer.proj, motion[:, 18:], [-1]), (packer.proj_2x, motion[:, 16:18], [-3]),
                                      (packer.proj_4x, motion[:, :16], [-19, -14, -9, -4])):
            values, (count, high, wide) = tokens(layer, frames)
            assert count == len(places)
            rows.append(values)
            turns.append(angles(places, spread(0, height - 1, high), spread(0, width - 1, wide)))
        return torch.cat(rows), torch.cat(turns)

    def forward(self, latents, sigma, text, states, pose=None, motion=None):
        """latents: [16, 1 + T, h, w], the reference first. sigma: []. text: [L, D], states: [S, 4 T, C]. Returns the
        velocity, [16, 1 + T, h, w]; the published program does not compute that of the reference."""
        reference, clip = latents[:, :1], latents[:, 1:]
        x, (count, height, width) = tokens(self.patch_embedding, clip)
        x = x + tokens(self.cond_encoder, torch.zeros_like(clip) if pose is None else pose)[0]
        shown = tokens(self.patch_embedding, reference)[0]
        rows, kinds, turns = [x, shown], [0, 1], [angles(range(count), range(height), range(width)),
                                                   angles([30], range(height), range(width))]
        if motion is not None:
            before, of_before = self.packed(motion, height, width)
            rows, kinds, turns = [*rows, before], [*kinds, 2], [*turns, of_before]
        end = len(x)
        x = torch.cat([values + self.trainable_cond_mask.weight[kind] for values, kind in zip(rows, kinds)])
        rates = 10000.0 ** (-torch.arange(WAVES // 2, dtype=torch.float64) / (WAVES // 2))
        waves = (1000 * torch.stack([sigma, torch.zeros_like(sigma)]).double())[:, None] * rates
        time = self.time_embedding(torch.cat([waves.cos(), waves.sin()], 1).float())
        level = (torch.arange(len(x)) >= end).long()
        levels = self.time_projection(time).unflatten(1, (6, -1))[level]
        text = self.text_embedding(functional.pad(text, (0, 0, 0, 512 - len(text))))
        of_all, heard = self.casual_audio_encoder(states)
        turn = turner(torch.cat(turns))
        for index, block in enumerate(self.blocks):
            x = block(x, levels, text, turn)
            if index not in HEARS:
                continue
            number = HEARS.index(index)
            frames = x[:end].unflatten(0, (count, -1))
            shift, scale = self.audio_injector.injector_adain_layers[number].linear(functional.silu(of_all)).chunk(2, 1)
            moved = norm(frames, eps=1e-5) * (1 + scale[:, None]) + shift[:, None]
            frames = frames + self.audio_injector.injector[number](moved, heard)
            x = torch.cat([frames.flatten(0, 1), x[end:]])
        made = []
        for rows, level in ((x[end:end + height * width], time[1]), (x[:end], time[0])):
            shift, scale = (self.head.modulation + level).unbind(1)
            made.append(self.head.head(norm(rows) * (1 + scale) + shift))
        out = torch.cat(made).view(1 + count, height, width, 2, 2, 16)
        return out.permute(5, 0, 1, 3, 2, 4).reshape(latents.shape)


def make_dit(seed=120):
    return tiny_models.randomize_(SpeechDit(), seed, overrides=[(r"modulation", 8.0), (r"trainable_cond_mask", 5.0)])


def save(dit, folder):
    """Writes the denoiser as it is published, with its config."""
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    save_file(tiny_models.contiguous(dit.state_dict()), folder / "diffusion_pytorch_model.safetensors")
    return folder


def make_sound_encoder(seed=121):
    config = Wav2Vec2Config(hidden_size=SOUND_WIDTH, intermediate_size=56, num_hidden_layers=STATES - 1,
                            num_attention_heads=4, conv_bias=True, conv_dim=[16] * 7, num_conv_pos_embeddings=8,
                            num_conv_pos_embedding_groups=4, do_stable_layer_norm=True, feat_extract_norm="layer")
    return tiny_models.randomize_(Wav2Vec2Model(config).eval(), seed)


def states_of(encoder, samples):
    """[S, F, C]; transformers gives the last one in front of the last norm since version 5."""
    samples = (samples - samples.mean()) / (samples.var(correction=0) + 1e-7).sqrt()
    output = encoder(input_values=samples[None], output_hidden_states=True)
    return torch.cat([*output.hidden_states[:-1], output.last_hidden_state])


def at_frames(states, numbers, rate=RATE):
    """States [S, F, C] of 50 moments a second at the times of frames of these numbers."""
    count = int(states.shape[1] / 50.0 * 30)
    mixed = functional.interpolate(states.mT, size=count, align_corners=True, mode="linear").mT
    places = np.round(np.maximum(np.asarray(numbers), 0) / rate * 30).astype(int)
    there = torch.from_numpy(places < count)
    return mixed[:, np.minimum(places, count - 1)] * there[None, :, None]
