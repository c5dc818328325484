"""Ten PyTorch programs for torch_programs.py: PROGRAMS has each by its name.

A program is a function of the batch size. It builds a model and its data on the GPU and returns
step(index), which does one step and returns a scalar: the loss, or for inference a sum of outputs.
Sizes that change between steps depend on the seed and the index only.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Callable, Optional, Sequence

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[int], torch.Tensor]


def draw(index: int, low: int, high: int, unit: int = 1) -> int:
    """A random multiple of `unit` between `low` and `high` for the step `index`."""
    return random.Random(f"{index} {low} {high}").randrange(low, high + 1, unit)


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocabulary, shape, device="cuda")


def choose(index: int, choices: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return choices[draw(index, 0, len(choices) - 1)]


def trainer(model: nn.Module, loss_of: Callable[[int], torch.Tensor], bfloat16: bool) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(index: int) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            loss = loss_of(index)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# ---- Transformers ----


class Attention(nn.Module):
    """Self-attention; with a cache, of one more token."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cache: Optional[list] = None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.inward(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        causal = self.causal and (cache is None or not cache)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.outward(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True,
                 feed: Optional[nn.Module] = None) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.feed = feed or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: Optional[list] = None) -> torch.Tensor:
        x = x + self.attention(self.before(x), cache)
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, causal: bool = True,
                 feed: Callable[[], Optional[nn.Module]] = lambda: None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal, feed()) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: torch.Tensor, caches: Optional[list[list]] = None,
                start: int = 0) -> torch.Tensor:
        places = torch.arange(start, start + words.shape[1], device=words.device)
        x = self.words(words) + self.places(places)
        for index, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[index])
        return self.head(self.norm(x))


def next_word_loss(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def gpt2(batch: int) -> Step:
    """Trains GPT-2 small (124 million parameters), 512 tokens a sequence, in bfloat16."""
    model = Transformer(12, 768, 12, 50257).cuda()
    return trainer(model, lambda index: next_word_loss(model, tokens(50257, batch, 513)), True)


def lengths(batch: int) -> Step:
    """Trains an encoder of 6 layers; each step has another length, 64 to 1,024."""
    model = Transformer(6, 512, 8, 16000, causal=False).cuda()

    def loss_of(index: int) -> torch.Tensor:
        words = tokens(16000, batch, draw(index, 64, 1024))
        hidden = torch.rand(words.shape, device="cuda") < 0.15
        found = model(words.masked_fill(hidden, 0))
        return functional.cross_entropy(found[hidden], words[hidden])

    return trainer(model, loss_of, True)


class Experts(nn.Module):
    """Feed-forward networks, of which two serve each token; their loads change with each batch."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).float().softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        experts = torch.arange(len(self.experts), device=x.device)
        loads = (chosen.flatten() == experts[:, None]).sum(1).tolist()
        parts = flat[order // 2].split(loads)
        found = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        found = found * weights.flatten()[order, None]
        return torch.zeros_like(flat).index_add(0, order // 2, found.to(flat.dtype)).view_as(x)


def moe(batch: int) -> Step:
    """Trains a transformer with 8 experts in each of 3 layers."""
    model = Transformer(3, 512, 8, 16000, feed=lambda: Experts(512, 8)).cuda()
    return trainer(model, lambda index: next_word_loss(model, tokens(16000, batch, 513)), True)


def generation(batch: int) -> Step:
    """A transformer of 8 layers answers: a prompt of 32 to 512 tokens, then 16, with a cache that
    grows by torch.cat."""
    model = Transformer(8, 768, 12, 50257).cuda().bfloat16().eval()

    @torch.inference_mode()
    def step(index: int) -> torch.Tensor:
        caches: list[list] = [[] for _ in model.blocks]
        words = tokens(50257, batch, draw(index, 32, 512))
        at, total = 0, torch.zeros((), device="cuda")
        for _ in range(16):
            found = model(words, caches, at)[:, -1].float().log_softmax(-1)
            at += words.shape[1]
            best = found.max(-1, keepdim=True)
            total += best.values.sum()
            words = best.indices
        return total

    return step


# ---- Convolutions ----


class Bottleneck(nn.Module):
    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inward, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outward, 1, bias=False), nn.BatchNorm2d(outward))
        self.skip = nn.Sequential() if inward == outward else nn.Sequential(
            nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x), inplace=True)


def backbone(counts: tuple[int, ...]) -> nn.Sequential:
    """The stages of a residual network: the first has 1/4 of the resolution, each other half."""
    stages: list[nn.Module] = []
    inward = 64
    for stage, count in enumerate(counts):
        blocks: list[nn.Module] = [] if stage else [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.AvgPool2d(3, 2, 1)]
        for index in range(count):
            blocks.append(Bottleneck(inward, 64 << stage, 2 if stage and not index else 1))
            inward = 256 << stage
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages)


def resnet(batch: int) -> Step:
    """Trains ResNet-50 with 176 x 176 pixels, `cudnn.benchmark` and channels last."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 3
    body, head = backbone((3, 4, 6, 3)), nn.Linear(2048, 1000)
    model = nn.ModuleList([body, head]).cuda().to(memory_format=torch.channels_last)
    pictures = torch.randn(batch, 3, 176, 176, device="cuda").to(memory_format=torch.channels_last)

    def loss_of(index: int) -> torch.Tensor:
        return functional.cross_entropy(head(body(pictures).mean((2, 3))), tokens(1000, batch))

    return trainer(model, loss_of, True)


def overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of each box of `a` with each of `b`; boxes are x0, y0, x1, y1."""
    low = torch.maximum(a[:, None, :2], b[:, :2])
    high = torch.minimum(a[:, None, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(2)
    return both / ((a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1) - both)


def boxes_within(count: int, high: int, wide: int) -> torch.Tensor:
    extent = torch.tensor([wide, high], device="cuda")
    middle = torch.rand(count, 2, device="cuda") * extent
    half = 8 + torch.rand(count, 2, device="cuda") * extent / 8
    return torch.cat([middle - half, middle + half], 1)


class Detector(nn.Module):
    """Two stages: scores of anchors at 1/8 of the resolution; classes of the best that remain."""

    def __init__(self) -> None:
        super().__init__()
        self.body = backbone((2, 2, 2))
        self.join = nn.ModuleList(nn.Conv2d(256 << stage, 256, 1) for stage in (1, 2))
        self.anchors = nn.Conv2d(256, 9 * 5, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(256 * 49, 1024), nn.ReLU(), nn.Linear(1024, 85))

    def forward(self, picture: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        high, wide = picture.shape[2:]
        fine = self.body[1](self.body[0](picture))
        coarse = self.join[1](self.body[2](fine))
        coarse = coarse[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
        fine = self.join[0](fine) + coarse.reshape(1, 256, high // 8, wide // 8)

        found = self.anchors(fine).float().view(9, 5, -1).permute(2, 0, 1).reshape(-1, 5)
        y, x = torch.meshgrid(torch.arange(0, high, 8, device="cuda"),
                              torch.arange(0, wide, 8, device="cuda"), indexing="ij")
        middle = torch.stack([x, y], -1).view(-1, 1, 2).expand(-1, 9, 2).reshape(-1, 2) + 4
        half = torch.tensor([[8 * 2 ** (a % 3), 8 * 2 ** (a // 3)] for a in range(9)],
                            device="cuda").repeat(len(x.flatten()), 1)
        anchors = torch.cat([middle - half, middle + half], 1).float()

        matches = overlaps(anchors, truth)
        best, which = matches.max(1)
        near = (best > 0.4).nonzero()[:, 0]
        loss = functional.binary_cross_entropy_with_logits(found[:, 4], (best > 0.4).float())
        if len(near):
            loss = loss + functional.smooth_l1_loss(
                found[near, :4], (truth[which[near]] - anchors[near]) / 16)

        chosen = found[:, 4].detach().topk(min(1000, len(found))).indices
        boxes = anchors[chosen] + 16 * found[chosen, :4].detach().clamp(-1, 1)
        # A box remains unless one with a higher score covers it.
        covered = (overlaps(boxes, boxes) > 0.7).triu(1).any(0)
        boxes = torch.cat([boxes[~covered], truth])

        # 7 x 7 values of each box.
        at = (torch.arange(7, device="cuda") + 0.5) / 7
        xs = boxes[:, :1] + at * (boxes[:, 2:3] - boxes[:, :1])
        ys = boxes[:, 1:2] + at * (boxes[:, 3:] - boxes[:, 1:2])
        xs = (xs / 8).long().clamp(0, wide // 8 - 1)
        ys = (ys / 8).long().clamp(0, high // 8 - 1)
        places = (ys[:, :, None] * (wide // 8) + xs[:, None]).view(-1)
        values = fine[0].flatten(1).t()[places].view(len(boxes), -1)
        best, which = overlaps(boxes, truth).max(1)
        labels = torch.where(best > 0.5, 1 + which % 80, 0)
        classes = self.head(values)
        loss = loss + functional.cross_entropy(classes[:, :81], labels)
        return loss + functional.smooth_l1_loss(
            classes[:, 81:], (truth[which] - boxes) / 64)


def detection(batch: int) -> Step:
    """Trains a detector: pictures of three sizes, with 1 to 200 boxes each."""
    model = Detector().cuda()

    def loss_of(index: int) -> torch.Tensor:
        losses = []
        for picture in range(batch):
            at = 1000 * index + picture
            high, wide = choose(at, ((384, 512), (512, 384), (448, 448)))
            truth = boxes_within(draw(at, 1, 200), high, wide)
            losses.append(model(torch.randn(1, 3, high, wide, device="cuda"), truth))
        return torch.stack(losses).mean()

    return trainer(model, loss_of, True)


class Residual(nn.Module):
    def __init__(self, inward: int, outward: int, heads: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, inward), nn.SiLU(), nn.Conv2d(inward, outward, 3, padding=1))
        self.time = nn.Linear(512, outward)
        self.second = nn.Sequential(
            nn.GroupNorm(32, outward), nn.SiLU(), nn.Conv2d(outward, outward, 3, padding=1))
        self.skip = nn.Conv2d(inward, outward, 1)
        self.attention = Block(outward, heads, causal=False) if heads else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])
        if self.attention is None:
            return x
        return self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 512), nn.SiLU(), nn.Linear(512, 512))
        self.inward, self.outward = (nn.Conv2d(4, width, 3, padding=1),
                                     nn.Conv2d(width, 4, 3, padding=1))
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            Residual(sizes[max(level - 1, 0)], size, 8 if level else 0)
            for level, size in enumerate(sizes))
        self.middle = Residual(sizes[-1], sizes[-1], 8)
        self.up = nn.ModuleList(
            Residual(2 * size, sizes[max(level - 1, 0)], 8 if level else 0)
            for level, size in enumerate(sizes))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        time, x = self.time(time[:, None]), self.inward(x)
        kept = []
        for level in self.down:
            x = level(x, time)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for level, other in zip(reversed(self.up), reversed(kept)):
            size = other.shape
            x = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(
                size[0], -1, *size[2:])
            x = level(torch.cat([x, other], 1), time)
        return self.outward(x)


def diffusion(batch: int) -> Step:
    """Trains a diffusion U-Net with a moving average of its weights, on latents of three shapes."""
    model = UNet(128).cuda()
    average = [parameter.detach().clone() for parameter in model.parameters()]

    def loss_of(index: int) -> torch.Tensor:
        shape = (batch, 4, *choose(index, ((48, 80), (80, 48), (64, 64))))
        clean, noise = (torch.randn(shape, device="cuda") for _ in range(2))
        time = torch.rand(batch, device="cuda")
        share = time[:, None, None, None]
        return functional.mse_loss(model((1 - share) * clean + share * noise, time), noise)

    train = trainer(model, loss_of, True)

    def step(index: int) -> torch.Tensor:
        loss = train(index)
        torch._foreach_lerp_(average, list(model.parameters()), 0.001)
        return loss

    return step


# ---- Sparse ----


class Messages(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = self.edge(torch.cat([x[source], x[target]], 1))
        total = torch.zeros_like(x).index_add(0, target, found)
        count = torch.zeros(len(x), 1, device=x.device).index_add(
            0, target, torch.ones(len(target), 1, device=x.device))
        return x + self.node(torch.cat([x, total / count.clamp(min=1)], 1))


def graph_network(batch: int) -> Step:
    """Trains a graph network; a graph has 200 to 3,000 nodes, each node 4 to 12 edges."""
    width = 128
    layers = nn.ModuleList(Messages(width) for _ in range(4))
    inward, head = nn.Linear(16, width), nn.Linear(width, 1)
    model = nn.ModuleList([layers, inward, head]).cuda()

    def loss_of(index: int) -> torch.Tensor:
        sizes = [draw(1000 * index + graph, 200, 3000) for graph in range(batch)]
        nodes = sum(sizes)
        edges = nodes * draw(index, 4, 12)
        owner = torch.repeat_interleave(torch.tensor(sizes).cuda(), output_size=nodes)
        source, target = tokens(nodes, edges), tokens(nodes, edges)
        x = inward(torch.randn(nodes, 16, device="cuda"))
        for layer in layers:
            x = layer(x, source, target)
        found = torch.zeros(batch, width, device="cuda").index_add(0, owner, x)
        wanted = torch.tensor(sizes).cuda()[:, None] / 3000
        return functional.mse_loss(head(found / 3000), wanted)

    return trainer(model, loss_of, False)


# ---- CUDA graphs ----


def compiled(batch: int) -> Step:
    """Trains a transformer by `torch.compile(mode="reduce-overhead")`, with two lengths."""
    model = Transformer(4, 512, 8, 8000).cuda()
    fast = torch.compile(model, mode="reduce-overhead", dynamic=False)

    def loss_of(index: int) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return next_word_loss(fast, tokens(8000, batch, 257 if index % 3 else 129))

    return trainer(model, loss_of, True)


def graphs(batch: int) -> Step:
    """Serves requests as inference engines do: eager prompts of changing lengths, then 16 replays
    of one of 8 graphs in one pool, by batch size; buffers of the output are in a MemPool."""
    model = Transformer(6, 768, 12, 32000).cuda().bfloat16().eval()
    buffers = torch.cuda.MemPool()
    sizes = [batch * (8 - index) // 8 for index in range(8)]
    captured: dict[int, tuple] = {}

    @torch.inference_mode()
    def capture() -> None:
        pool = torch.cuda.graph_pool_handle()
        for size in sizes:
            words = torch.zeros(size, 128, dtype=torch.int64, device="cuda")
            model(words)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                found = model(words)[:, -1].argmax(-1)
            captured[size] = graph, words, found

    @torch.inference_mode()
    def step(index: int) -> torch.Tensor:
        if not captured:
            capture()
        size = sizes[draw(index, 0, 7)]
        graph, words, found = captured[size]
        prompt = tokens(32000, size, draw(index, 64, 1024))
        scores = model(prompt)[:, -1].float()
        words.copy_(tokens(32000, size, 128))
        with torch.cuda.use_mem_pool(buffers):
            answer = torch.empty(size, 16 * draw(index, 1, 64), dtype=torch.int64, device="cuda")
        answer.zero_()
        for at in range(16):
            graph.replay()
            answer[:, at] = found
            words.copy_(words.roll(-1, 1))
            words[:, -1] = found
        return scores.logsumexp(-1).sum() + answer.sum()

    return step


@dataclasses.dataclass(frozen=True)
class Program:
    build: Callable[[int], Step]
    batch: int  # of the measured run
    warm: int  # steps before the clock starts
    steps: int  # of a round
    most: int = 0  # the largest batch that the search within a limit tries; 0: no search


PROGRAMS = {
    "gpt2": Program(gpt2, 8, 3, 6, 64),
    "resnet": Program(resnet, 64, 3, 6),
    "lengths": Program(lengths, 16, 12, 8, 128),
    "detection": Program(detection, 2, 6, 4),
    "diffusion": Program(diffusion, 16, 6, 6, 256),
    "generation": Program(generation, 16, 2, 3),
    "graph_network": Program(graph_network, 16, 10, 10, 128),
    "moe": Program(moe, 8, 4, 6),
    "compiled": Program(compiled, 8, 8, 20),
    "graphs": Program(graphs, 32, 6, 8),
}


def build(program: Program, batch: int) -> Step:
    """The program with the same weights each time."""
    torch.manual_seed(1)
    with torch.device("cuda"):
        return program.build(batch)


def prepare() -> None:
    """Selects deterministic algorithms where there are any; imports what most programs use later
    and what does not use CUDA."""
    import torch._inductor.compile_fx
    import torch._inductor.cudagraph_trees

    # With warn_only the backward pass of attention would not be deterministic.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("high")
    # cuDNN builds a plan for each new length, which takes longer than the program.
    torch.backends.cuda.enable_cudnn_sdp(False)
