#!/usr/bin/env python3
"""usage: api_reference.py HEADER MAP FOLDER: pages of tcuda.h for the documentation site.

Writes FOLDER/<section>.md for each section of the header: every type, constant and function with
its comment, its parameters and its torch.cuda name; FOLDER/index.md, which lists all functions; and
FOLDER/torch_cuda.md, the map from names of torch.cuda to functions (MAP is data/torch_cuda.txt).
"""

import html
import pathlib
import re
import sys

SECTION = re.compile(r"^/\* =+ (.+?) =+ \*/$", re.M)
PART = re.compile(r"^/\* ---- (.+?) ---- \*/$", re.M)
# A comment that stands before a declaration, and that declaration up to its end.
ITEM = re.compile(
    r"/\*\*(?!<)(?P<comment>.*?)\*/\s*\n"
    r"(?P<code>(?:#define [^\n]*(?:\\\n[^\n]*)*\n(?:#define [^\n]*\n)*)"
    r"|(?:typedef (?:struct|enum) \w+ \{.*?\n\} \w+;)"
    r"|(?:[^;{]*?;))",
    re.S,
)
NAME = re.compile(r"\b(tcuda_\w+)\s*\(|\}\s*(\w+);|\(\*(\w+)\)|struct \w+ (\w+);|#define (\w+)")
TORCH = re.compile(r"\((?:the \w+ of an? )?(torch[\w.]*[^()]*|\+)\)\s*$")


def slug(title):
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def plain(comment):
    """The text of a comment without its stars, and its @param lines as (name, text)."""
    text = re.sub(r"^\s*\* ?", "", comment.strip(), flags=re.M)
    body, *params = re.split(r"^@param", text, flags=re.M)
    rows = []
    for param in params:
        found = re.match(r"(\[[\w,]+\])?\s*([\w, ]+?)\s{1,}(.*)", param.strip(), re.S)
        if found:
            direction, name, meaning = found.groups()
            rows.append((name + (f" {direction}" if direction else ""), " ".join(meaning.split())))
    return body.strip(), rows


def prose(text, links):
    """Markdown of a comment: paragraphs, with names of functions as links."""

    def link(match):
        name = match.group(0)
        return f"[`{name}`]({links[name]})" if name in links else name

    text = html.escape(text, quote=False).replace("_", r"\_").replace("*", r"\*")
    def unescaped(match):
        return link(re.match(r".*", match.group(0).replace("\\", "")))

    return re.sub(r"tcuda\\_[\w\\]+", unescaped, text)


def sections(header):
    marks = [(match.start(), match.end(), match.group(1)) for match in SECTION.finditer(header)]
    for index, (_, begin, title) in enumerate(marks):
        end = marks[index + 1][0] if index + 1 < len(marks) else header.rindex("#ifdef __cplusplus")
        yield title.strip(), header[begin:end]


def items(text):
    """(part, name, code, comment) of each declaration, in order."""
    parts = [(0, "")] + [(match.start(), match.group(1)) for match in PART.finditer(text)]
    for match in ITEM.finditer(text):
        part = [title for start, title in parts if start <= match.start()][-1]
        code = re.sub(r"\bTCUDA_(API|NODISCARD)\b\s*", "", match["code"]).strip()
        found = NAME.search(code)
        if found:
            yield part, next(group for group in found.groups() if group), code, match["comment"]


def page(title, text, links):
    lines = [f"# {title}", ""]
    last = ""
    for part, name, code, comment in items(text):
        if part != last:
            lines += [f"## {part}", ""]
            last = part
        body, rows = plain(comment)
        torch = TORCH.search(body)
        if torch:
            body = body[: torch.start()].rstrip()
        lines += [f"### {name} {{ #{name} }}", "", "```c", code, "```", ""]
        if torch and torch.group(1) != "+":
            lines += [f"*PyTorch: `{' '.join(torch.group(1).split())}`*", ""]
        for paragraph in re.split(r"\n\s*\n", body):
            lines += [prose(" ".join(paragraph.split()), links), ""]
        if rows:
            lines += ["| parameter | meaning |", "|---|---|"]
            for parameter, meaning in rows:
                cell = prose(meaning, links).replace("|", r"\|")
                lines.append(f"| `{parameter}` | {cell} |")
            lines.append("")
    return "\n".join(lines)


def torch_map(text, links):
    lines = [
        "# torch.cuda in tcuda.h",
        "",
        "Each public name of PyTorch's `torch.cuda`, and the functions that do the same, or why",
        "there are none.",
        "",
    ]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            lines += ["", f"## {line.strip('[]')}", "", "| name | tcuda |", "|---|---|"]
            continue
        name, _, rest = line.partition(":")
        rest = rest.strip()
        if rest.startswith("none:"):
            cell = "none: " + prose(rest[5:].strip(), links)
        else:
            cell = " ".join(
                f"[`{word}`]({links[word]})" if word in links else prose(word, {})
                for word in rest.split()
            )
        lines.append(f"| `{name}` | {cell} |".replace("||", "|"))
    return "\n".join(lines) + "\n"


def main():
    header = pathlib.Path(sys.argv[1]).read_text()
    folder = pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    found = [(title, text, list(items(text))) for title, text in sections(header)]
    links = {
        name: f"{slug(title)}.md#{name}" for title, _, list_ in found for _, name, _, _ in list_
    }
    declared = set(re.findall(r"\b(tcuda_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    declared = {name for name in declared if not name.endswith("_fn")}
    if missing := sorted(declared - set(links)):
        sys.exit(f"no page has these functions: {', '.join(missing)}")
    index = ["# API reference", "", "From the comments of `tcuda.h`, section by section.", ""]
    for title, text, list_ in found:
        (folder / f"{slug(title)}.md").write_text(page(title, text, links))
        index += [f"## [{title}]({slug(title)}.md)", ""]
        names = [name for _, name, code, _ in list_ if name in declared]
        index += [", ".join(f"[`{name}`]({links[name]})" for name in names), ""]
    (folder / "index.md").write_text("\n".join(index))
    (folder / "torch_cuda.md").write_text(torch_map(pathlib.Path(sys.argv[2]).read_text(), links))
    print(f"figure: functions in the reference = {len(declared)}")


main()
