"""Reads tcuda.h: its functions, their comments and parameters, and the kinds of its types."""

import re
from dataclasses import dataclass, field


# What ends the handles of a type, where it is not _destroy.
ENDS = {"tcuda_file": "tcuda_file_close"}


def end_of(type):
    """The name of the function that ends a handle."""
    return ENDS.get(type, f"{type}_destroy")


@dataclass
class Parameter:
    type: str  # "const char *", without the name
    name: str

    @property
    def pointee(self):
        """What it points to, without const: "tcuda_stream" of "tcuda_stream *"."""
        return re.sub(r"\bconst\b", "", self.type[: self.type.rfind("*")]).strip()

    @property
    def is_pointer(self):
        return self.type.endswith("*")

    @property
    def is_const(self):
        """May the callee not write what it points to?"""
        return re.search(r"const \*$|^const [^*]*\*$", self.type) is not None


@dataclass
class Function:
    name: str
    result: str
    comment: str
    parameters: list[Parameter]

    def says_may_be_null(self, name):
        """Does its @param, or a clause of the comment that names it, say that it "may be NULL"?"""
        clause = rf"\b{name}\b`?[^.;:@]*\bmay be NULL"
        param = rf"@param(\[\w+\])? {name}\b[^@]*\bmay be NULL"
        return re.search(f"{clause}|{param}", self.comment) is not None


@dataclass
class Header:
    functions: list[Function] = field(default_factory=list)
    opaque: set[str] = field(default_factory=set)
    sized: set[str] = field(default_factory=set)
    callbacks: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: result, parameters


def parameters(text):
    """The parameters between two parentheses."""
    text = re.sub(r"\s+", " ", text).strip()
    if text in ("", "void"):
        return []
    parts = [re.fullmatch(r"(.*?) ?(\w+)", part.strip()) for part in text.split(",")]
    return [Parameter(part.group(1), part.group(2)) for part in parts]


def parse(text):
    header = Header()
    text = re.sub(r"^\s*#.*?[^\\]$", "", text, flags=re.MULTILINE | re.DOTALL)
    comment = ""
    token = re.compile(
        r"/\*(?P<comment>.*?)\*/"
        r"|typedef struct (?P<opaque>\w+) (?P=opaque);"
        r"|typedef struct (?P<struct>\w+) \{(?P<members>.*?)\n?\} (?P=struct);"
        r"|typedef (?P<cb_result>[\w *]+?)\(\*(?P<callback>\w+)\)\((?P<cb_parameters>[^)]*)\);"
        r"|typedef [^;{]*(\{.*?\}[^;]*)?;"
        r"|(?P<result>\b[a-z][\w ]*?[ *]+)(?P<function>tcuda_\w+)\((?P<parameters>[^)]*)\);",
        re.DOTALL,
    )
    text = re.sub(r"\bTCUDA_(API|NODISCARD)\b", "", text)
    for match in token.finditer(text):
        if match["comment"] is not None:
            comment = re.sub(r"\s*\n\s*\*?\s*", " ", match["comment"]).strip("*< ")
        elif match["opaque"]:
            header.opaque.add(match["opaque"])
        elif match["struct"]:
            if "size_t struct_size;" in match["members"]:
                header.sized.add(match["struct"])
        elif match["callback"]:
            header.callbacks[match["callback"]] = (
                match["cb_result"].strip(),
                re.sub(r"\s+", " ", match["cb_parameters"]),
            )
        elif match["function"]:
            header.functions.append(
                Function(
                    match["function"],
                    re.sub(r"\s+", " ", match["result"]).strip(),
                    comment,
                    parameters(match["parameters"]),
                )
            )
    return header
