"""usage: unpack_traces.py FROM TO: unpacks FROM/*.trace.xz that are not in TO yet."""

import lzma
import pathlib
import shutil
import sys

source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
for packed in sorted(source.glob("*.trace.xz")):
    trace = target / packed.stem
    if trace.exists() and trace.stat().st_mtime >= packed.stat().st_mtime:
        continue
    partial = trace.with_suffix(".partial")
    with lzma.open(packed) as text, open(partial, "wb") as out:
        shutil.copyfileobj(text, out)
    partial.rename(trace)
