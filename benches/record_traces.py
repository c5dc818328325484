#!/usr/bin/env python3
"""Records what real programs ask PyTorch's allocator for, on a GPU: traces for `replay`.

    benches/record_traces.py OUTPUT_DIR [NAME...]

Networks with random weights and data run for some seconds each, sizes changing from step to step as
they do in practice; PyTorch's memory history tells every allocation and free in order. Writes
OUTPUT_DIR/NAME.trace.xz. Needs PyTorch, and for some programs torchvision, torch_geometric or
transformers; a program whose packages are missing is skipped.
"""

import lzma
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
MOST_EVENTS = 2_000_000


def amp():
    return torch.autocast(DEVICE, dtype=torch.bfloat16)


def train(model, optimizer, loss):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


# ---- Programs ----

def detection(rng):
    """Faster R-CNN with images of many sizes: the number of proposals differs every step."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=20,
                                    min_size=480, max_size=800).to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for step in range(14):
        images, targets = [], []
        for _ in range(rng.randint(1, 4)):
            height, width = rng.randrange(320, 800, 8), rng.randrange(320, 800, 8)
            images.append(torch.rand(3, height, width, device=DEVICE))
            count = rng.randint(1, 12)
            corner = torch.rand(count, 2, device=DEVICE) * torch.tensor(
                [width * 0.6, height * 0.6], device=DEVICE)
            size = torch.rand(count, 2, device=DEVICE) * 100 + 8
            targets.append({"boxes": torch.cat([corner, corner + size], 1),
                            "labels": torch.randint(1, 20, (count,), device=DEVICE)})
        with amp():
            losses = model(images, targets)
            loss = sum(losses.values())
        train(model, optimizer, loss)
        if step % 6 == 5:
            model.eval()
            with torch.no_grad(), amp():
                model([torch.rand(3, 600, 720, device=DEVICE)])
            model.train()


def graph_network(rng):
    """Graph attention on sampled graphs: nodes and edges differ every step."""
    from torch_geometric.nn import GATConv, SAGEConv, global_mean_pool

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GATConv(128, 64, heads=4), SAGEConv(256, 256)
            self.third, self.last = GATConv(256, 64, heads=4), nn.Linear(256, 16)

        def forward(self, x, edges, batch):
            x = F.elu(self.first(x, edges))
            x = F.dropout(F.relu(self.second(x, edges)), 0.3)
            return self.last(global_mean_pool(F.elu(self.third(x, edges)), batch))

    model = Network().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(120):
        nodes = rng.randint(4_000, 120_000)
        edges = torch.randint(0, nodes, (2, nodes * rng.randint(4, 18)), device=DEVICE)
        graphs = rng.randint(8, 64)
        batch = torch.randint(0, graphs, (nodes,), device=DEVICE).sort().values
        output = model(torch.randn(nodes, 128, device=DEVICE), edges, batch)
        train(model, optimizer, F.cross_entropy(output, torch.randint(0, 16, (output.shape[0],),
                                                                     device=DEVICE)))


class Layer(nn.Module):
    """A transformer's layer; `feed` is what follows the attention."""

    def __init__(self, width, heads, feed):
        super().__init__()
        self.heads, self.feed = heads, feed
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm2(x))


def mlp(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def checkpointing(rng):
    """A transformer that recomputes its layers in the backward pass; lengths differ."""
    width, vocabulary = 1280, 32000
    embed = nn.Embedding(vocabulary, width).to(DEVICE)
    layers = nn.ModuleList(Layer(width, 20, mlp(width)) for _ in range(20)).to(DEVICE)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE)
    parameters = [*embed.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(30):
        tokens = torch.randint(0, vocabulary, (rng.randint(2, 10), rng.randint(128, 2048)),
                               device=DEVICE)
        with amp():
            x = embed(tokens)
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False)
            loss = F.cross_entropy(head(x).flatten(0, 1), tokens.flatten())
        train(None, optimizer, loss)


class Experts(nn.Module):
    """The two best of eight experts for each token: what each gets differs every step."""

    def __init__(self, width, count=8):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(mlp(width) for _ in range(count))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            if rows.numel():
                part = expert(flat[rows]) * weights[rows, place].unsqueeze(-1)
                out = out.index_add(0, rows, part.to(out.dtype))
        return out.view_as(x)


def mixture_of_experts(rng):
    """A transformer with mixture-of-experts layers, batches of many lengths."""
    width, vocabulary = 768, 32000
    embed = nn.Embedding(vocabulary, width).to(DEVICE)
    layers = nn.ModuleList(Layer(width, 12, Experts(width) if index % 2 else mlp(width))
                           for index in range(12)).to(DEVICE)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE)
    parameters = [*embed.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(20):
        tokens = torch.randint(0, vocabulary, (rng.randint(2, 8), rng.randint(64, 1024)),
                               device=DEVICE)
        with amp():
            x = embed(tokens)
            for layer in layers:
                x = layer(x)
            loss = F.cross_entropy(head(x).flatten(0, 1), tokens.flatten())
        train(None, optimizer, loss)


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(256, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.first(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.second(F.silu(self.norm2(h))) + self.skip(x)


class Attend(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(8, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, height, length = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, 3, 8, width // 8, -1).permute(1, 0, 2, 4, 3)
        h = F.scaled_dot_product_attention(*qkv).transpose(2, 3).reshape(x.shape)
        return x + self.out(h)


class Unet(nn.Module):
    WIDTHS = (128, 256, 384, 512)

    def __init__(self):
        super().__init__()
        widths = self.WIDTHS
        self.enter, self.time = nn.Conv2d(4, widths[0], 3, padding=1), nn.Linear(1, 256)
        pairs = list(zip((widths[0],) + widths[:-1], widths))
        self.down = nn.ModuleList(Residual(a, b) for a, b in pairs)
        self.attend = nn.ModuleList(Attend(b) if b >= 256 else nn.Identity() for _, b in pairs)
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(Residual(2 * b, a) for a, b in reversed(pairs))
        self.leave = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x, time):
        time, kept = F.silu(self.time(time[:, None])), []
        x = self.enter(x)
        for block, attend in zip(self.down, self.attend):
            x = attend(block(x, time))
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)


def diffusion(rng):
    """A U-Net trained on pictures of many shapes, with an average of its weights; then sampled."""
    model = Unet().to(DEVICE)
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(60):
        shape = (rng.randint(2, 12), 4, rng.choice([32, 48, 64, 96]), rng.choice([32, 48, 64, 96]))
        picture, time = torch.randn(shape, device=DEVICE), torch.rand(shape[0], device=DEVICE)
        noise = torch.randn_like(picture)
        with amp():
            loss = F.mse_loss(model(picture + noise, time), noise)
        train(model, optimizer, loss)
        torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.01)
        if step % 20 == 19:
            with torch.no_grad(), amp():
                x = torch.randn(8, 4, 64, 64, device=DEVICE)
                for index in range(20):
                    at = torch.full((16,), index / 20, device=DEVICE)
                    with_text, without = model(torch.cat([x, x]), at).chunk(2)
                    x = x - 0.05 * (without + 3 * (with_text - without))


def long_generation(rng):
    """A language model that answers batch after batch, caches growing to thousands of tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16,
                         num_attention_heads=16, num_key_value_heads=8, vocab_size=32000,
                         max_position_embeddings=8192)
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    for _ in range(3):
        batch, length = rng.randint(1, 12), rng.randint(64, 3000)
        tokens = torch.randint(0, 32000, (batch, length), device=DEVICE)
        with torch.no_grad():
            model.generate(tokens, max_new_tokens=rng.randint(60, 240), do_sample=True, top_k=50,
                           use_cache=True, pad_token_id=0, eos_token_id=None)


class Recognizer(nn.Module):
    """Convolutions over spectrograms, then a transformer; one output a frame."""

    def __init__(self, width=320, layers=8):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(80, width, 5, stride=2, padding=2), nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU())
        layer = nn.TransformerEncoderLayer(width, 5, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.leave = nn.Linear(width, 500)

    def forward(self, x, lengths):
        x = self.convolutions(x).transpose(1, 2)
        lengths = (lengths + 3) // 4
        frames = torch.arange(x.shape[1], device=DEVICE)
        x = self.encoder(x, src_key_padding_mask=frames[None] >= lengths[:, None])
        return self.leave(x).float().log_softmax(-1), lengths


def speech(rng):
    """Speech recognition: batches of about equally many frames, of two to thirty seconds."""
    model = Recognizer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(120):
        longest = rng.randint(200, 3000)
        count = max(1, 24_000 // longest)
        lengths = torch.randint(longest // 2, longest + 1, (count,), device=DEVICE)
        x = torch.randn(count, 80, longest, device=DEVICE)
        most = max(1, longest // 20)
        texts = torch.randint(1, 500, (count, most), device=DEVICE)
        text_lengths = torch.randint(1, most + 1, (count,), device=DEVICE)
        with amp():
            outputs, frames = model(x, lengths)
        loss = F.ctc_loss(outputs.transpose(0, 1), texts, frames, text_lengths, zero_infinity=True)
        train(model, optimizer, loss)
        if step % 30 == 29:
            with torch.no_grad(), amp():
                model(torch.randn(2, 80, rng.randint(3000, 6000), device=DEVICE),
                      torch.tensor([3000, 2500], device=DEVICE))


def adversarial(rng):
    """A generator and a discriminator of pictures, whose size doubles several times."""
    def up(before, after):
        return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(before, after, 3, padding=1),
                             nn.BatchNorm2d(after), nn.LeakyReLU(0.2))

    def down(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(0.2))

    widths = (512, 512, 256, 128, 64, 32)
    blocks_up = nn.ModuleList(up(a, b) for a, b in zip(widths, widths[1:])).to(DEVICE)
    blocks_down = nn.ModuleList(down(b, a) for a, b in zip(widths, widths[1:])).to(DEVICE)
    enter = nn.Linear(128, 512 * 16).to(DEVICE)
    to_picture = nn.ModuleList(nn.Conv2d(w, 3, 1) for w in widths[1:]).to(DEVICE)
    of_picture = nn.ModuleList(nn.Conv2d(3, w, 1) for w in widths[1:]).to(DEVICE)
    judge = nn.Linear(512 * 16, 1).to(DEVICE)
    makers = nn.ModuleList([enter, blocks_up, to_picture])
    judges = nn.ModuleList([blocks_down, of_picture, judge])
    first = torch.optim.Adam(makers.parameters(), 2e-4, (0.5, 0.99))
    second = torch.optim.Adam(judges.parameters(), 2e-4, (0.5, 0.99))

    def make(count, level):
        x = enter(torch.randn(count, 128, device=DEVICE)).view(count, 512, 4, 4)
        for block in blocks_up[:level + 1]:
            x = block(x)
        return to_picture[level](x).tanh()

    def score(x, level):
        x = of_picture[level](x)
        for block in list(blocks_down[:level + 1])[::-1]:
            x = block(x)
        return judge(x.flatten(1))

    for level in range(5):
        size = 8 << level
        for _ in range(30):
            count = rng.randint(8, 64)
            real = torch.rand(count, 3, size, size, device=DEVICE) * 2 - 1
            with amp():
                made = make(count, level)
                loss = (F.softplus(score(made.detach(), level)).mean()
                        + F.softplus(-score(real, level)).mean())
            train(judges, second, loss)
            with amp():
                loss = F.softplus(-score(made, level)).mean()
            train(makers, first, loss)


def translation(rng):
    """A transformer that translates: training, and beams that are reordered at every token."""
    model = nn.Transformer(384, 6, 4, 4, 1536, batch_first=True).to(DEVICE)
    words, leave = nn.Embedding(20_000, 384).to(DEVICE), nn.Linear(384, 20_000).to(DEVICE)
    parts = nn.ModuleList([model, words, leave])
    optimizer = torch.optim.Adam(parts.parameters(), 1e-4)

    def mask(length):
        return nn.Transformer.generate_square_subsequent_mask(length, device=DEVICE)

    for step in range(90):
        count, source, target = rng.randint(8, 40), rng.randint(8, 160), rng.randint(8, 160)
        x = torch.randint(0, 20_000, (count, source), device=DEVICE)
        y = torch.randint(0, 20_000, (count, target + 1), device=DEVICE)
        with amp():
            outputs = leave(model(words(x), words(y[:, :-1]), tgt_mask=mask(target)))
            loss = F.cross_entropy(outputs.flatten(0, 1).float(), y[:, 1:].flatten())
        train(parts, optimizer, loss)
        if step % 30 == 29:
            parts.eval()
            with torch.no_grad(), amp():
                x = torch.randint(0, 20_000, (6, rng.randint(10, 80)), device=DEVICE)
                memory = model.encoder(words(x)).repeat_interleave(5, 0)
                y = torch.zeros(30, 1, dtype=torch.long, device=DEVICE)
                for _ in range(rng.randint(20, 60)):
                    last = leave(model.decoder(words(y), memory, mask(y.shape[1]))[:, -1])
                    order = torch.randperm(30, device=DEVICE)
                    y = torch.cat([y[order], last.argmax(-1)[order, None]], 1)
            parts.train()


def recommendation(rng):
    """Tables of embeddings with sparse gradients, crossed features, batches of several sizes."""
    tables = nn.ModuleList(nn.EmbeddingBag(rng.randint(1_000, 400_000), 64, sparse=True)
                           for _ in range(24)).to(DEVICE)
    below = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64)).to(DEVICE)
    above = nn.Sequential(nn.Linear(64 + 25 * 24 // 2, 512), nn.ReLU(), nn.Linear(512, 1))
    above = above.to(DEVICE)
    sparse = torch.optim.SGD(tables.parameters(), 0.1)
    dense = torch.optim.Adam([*below.parameters(), *above.parameters()])
    for _ in range(150):
        count = rng.choice([512, 1024, 2048, 4096, 8192])
        bags = [below(torch.rand(count, 13, device=DEVICE))]
        for table in tables:
            many = rng.randint(1, 20)
            chosen = torch.randint(0, table.num_embeddings, (count, many), device=DEVICE)
            bags.append(table(chosen))
        x = torch.stack(bags, 1)
        rows, columns = torch.triu_indices(25, 25, 1, device=DEVICE)
        crossed = (x @ x.transpose(1, 2))[:, rows, columns]
        output = above(torch.cat([bags[0], crossed], 1))
        wanted = torch.randint(0, 2, (count, 1), device=DEVICE).float()
        loss = F.binary_cross_entropy_with_logits(output, wanted)
        sparse.zero_grad(set_to_none=True)
        train(above, dense, loss)
        sparse.step()


PROGRAMS = (detection, graph_network, checkpointing, mixture_of_experts, diffusion,
            long_generation, speech, adversarial, translation, recommendation)


# ---- Recording ----

def events_of(history):
    """The trace's lines: allocations and frees in the host's order, streams numbered as seen."""
    live, streams, lines, last = {}, {0: 0}, [], 0
    for entry in history:
        if entry["action"] == "alloc":
            stream = streams.setdefault(entry["stream"], len(streams))
            last += 1
            live[entry["addr"]] = last
            lines.append(f"a {last} {entry['size']} {stream}")
        elif entry["action"] == "free_requested" and entry["addr"] in live:
            lines.append(f"f {live.pop(entry['addr'])}")
    return lines, len(streams), last


def record(program, folder):
    name = program.__name__
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() == 0, "the program before left something"
    random.seed(1)
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(context=None, stacks="python",
                                             max_entries=MOST_EVENTS, clear_history=True)
    begun = time.monotonic()
    program(random.Random(20261122))
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    stats = torch.cuda.memory_stats()
    history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert len(history) < MOST_EVENTS, "the history was too short"
    lines, streams, allocations = events_of(history)
    header = {
        "workload": name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "conf": "",
        "seconds": f"{seconds:.2f}",
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_requested": stats["requested_bytes.all.peak"],
        "peak_active": stats["active_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "allocations": allocations,
        "segments": stats["segment.all.allocated"],
        "num_alloc_retries": stats["num_alloc_retries"],
        "events": len(lines),
        "streams": streams,
    }
    text = "".join(f"# {key} {value}\n" for key, value in header.items()) + "\n".join(lines) + "\n"
    with lzma.open(folder / f"{name}.trace.xz", "wt", preset=9) as file:
        file.write(text)
    print(f"{name}: {len(lines)} events, {seconds:.1f} s, peak "
          f"{header['peak_allocated'] >> 20} MiB", flush=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    # Workspaces come once, before anything is recorded.
    torch.ones(8, 8, device=DEVICE) @ torch.ones(8, 8, device=DEVICE)
    torch._C._cuda_clearCublasWorkspaces()
    failures = 0
    for program in PROGRAMS:
        if sys.argv[2:] and program.__name__ not in sys.argv[2:]:
            continue
        try:
            record(program, folder)
        except ImportError as error:
            print(f"{program.__name__}: skipped, {error}", flush=True)
        except Exception as error:  # the next program may still run
            failures += 1
            print(f"{program.__name__}: failed, {error!r}", flush=True)
        torch._C._cuda_clearCublasWorkspaces()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
