#!/usr/bin/env python3
"""usage: api_reference.py API_JSON MAP FOLDER: pages of tcuda.h for the documentation site.

Writes FOLDER/<section>.md for each section of the header: every type, constant and function with
its comment, its parameters and its torch.cuda name; FOLDER/index.md, which lists all functions; and
FOLDER/torch_cuda.md, the map from names of torch.cuda to functions (MAP is data/torch_cuda.txt).
"""

import html
import json
import pathlib
import re
import sys

KINDS = ("constants", "enums", "handles", "structs", "callbacks", "functions")


def slug(title):
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def prose(text, links):
    """Markdown of a comment: paragraphs, with names of functions as links."""

    def link(match):
        name = match.group(0)
        return f"[`{name}`]({links[name]})" if name in links else name

    text = html.escape(text, quote=False).replace("_", r"\_").replace("*", r"\*")
    def unescaped(match):
        return link(re.match(r".*", match.group(0).replace("\\", "")))

    return re.sub(r"tcuda\\_[\w\\]+", unescaped, text)


def declared(variable):
    """`char name[256]`: the rule is in data/api.schema.json."""
    type, name = variable["type"], variable["name"]
    before, mark, after = re.fullmatch(r"(.*?)(\(\*(?=\))|(?=\[)|$)(.*)", type).groups()
    before += mark
    return f"{before}{'' if before.endswith('*') else ' '}{name}{after}"


def prototype(entry, name):
    """A function, or the type of one, in lines of at most 100 columns."""
    result = entry["result"] + ("" if entry["result"].endswith("*") else " ")
    parameters = ", ".join(map(declared, entry["parameters"])) or "void"
    lines = [""]
    for part in re.findall(r".+?(?:, |$)", f"{result}{name}({parameters});"):
        if len(lines[-1] + part.rstrip()) > 100:
            lines.append("    ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def code(kind, entry):
    name = entry["name"]
    if kind == "constants":
        return f"#define {name} {entry['value']}"
    if kind == "handles":
        return f"typedef struct {name} {name};"
    if kind == "enums":
        tag = f"enum {name}" if entry["type"] == "enum" else entry["type"]
        return f"typedef {tag} {name};"
    if kind == "structs":
        members = "".join(f"    {declared(member)};\n" for member in entry["members"])
        return f"typedef struct {name} {{\n{members}}} {name};"
    return prototype(entry, name) if kind == "functions" else prototype(
        {**entry, "result": "typedef " + entry["result"]}, f"(*{name})")


def rows(kind, entry):
    """The parts of a declaration: a title, then names and what they mean."""
    if kind == "functions":
        yield "parameter"
        for p in entry["parameters"]:
            direction = {"in": "", "out": " [out]", "inout": " [in,out]"}[p["direction"]]
            yield p["name"] + direction, p.get("doc", "")
    elif kind == "enums":
        yield "constant"
        yield from ((f"{value['name']} = {value['value']}", value["doc"])
                    for value in entry["values"])
    elif kind == "structs":
        yield "member"
        yield from ((member["name"], member.get("doc", "")) for member in entry["members"])


def described(kind, entry, links):
    yield from (f"### {entry['name']} {{ #{entry['name']} }}", "")
    yield from ("```c", code(kind, entry), "```", "")
    if entry.get("torch_label", "+") != "+":
        yield from (f"*PyTorch: `{entry['torch_label']}`*", "")
    for paragraph in re.split(r"\n\s*\n", entry["doc"]):
        yield from (prose(" ".join(paragraph.split()), links), "")
    title, *table = [*rows(kind, entry)] or [""]
    table = [(name, meaning) for name, meaning in table if meaning]
    if table:
        yield from (f"| {title} | meaning |", "|---|---|")
        for name, meaning in table:
            cell = prose(" ".join(meaning.split()), links).replace("|", r"\|")
            yield f"| `{name}` | {cell} |"
        yield ""


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
    api = json.loads(pathlib.Path(sys.argv[1]).read_text())
    folder = pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    page_of = {section["title"]: section.get("part_of", section["title"])
               for section in api["sections"]}
    links = {entry["name"]: f"{slug(page_of[entry['section']])}.md#{entry['name']}"
             for kind in KINDS for entry in api[kind]}
    pages = {}
    index = ["# API reference", "", "From the comments of `tcuda.h`, section by section.", ""]
    for title, page in page_of.items():
        lines = pages.setdefault(page, [f"# {page}", ""])
        if title != page:
            lines += [f"## {title}", ""]
        for kind in KINDS:
            for entry in api[kind]:
                if entry["section"] == title:
                    lines += described(kind, entry, links)
    for page, lines in pages.items():
        (folder / f"{slug(page)}.md").write_text("\n".join(lines))
        names = [function["name"] for function in api["functions"]
                 if page_of[function["section"]] == page]
        index += [f"## [{page}]({slug(page)}.md)", ""]
        index += [", ".join(f"[`{name}`]({links[name]})" for name in names), ""]
    (folder / "index.md").write_text("\n".join(index))
    (folder / "torch_cuda.md").write_text(torch_map(pathlib.Path(sys.argv[2]).read_text(), links))
    print(f"figure: functions in the reference = {len(api['functions'])}")


main()
