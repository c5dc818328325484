"""What api.json says of tcuda.h: functions, their parameters, and the kinds of its types."""

import json
import re
from dataclasses import dataclass


@dataclass
class Parameter:
    type: str  # "const char *", without the name
    name: str
    nullable: bool = False
    null_if: str = ""  # "count is 0": only then
    ownership: str = ""  # "owned", "borrowed", ...

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

    @property
    def declaration(self):
        return f"{self.type}{self.name}" if self.is_pointer else f"{self.type} {self.name}"


@dataclass
class Function:
    name: str
    result: str
    parameters: list[Parameter]


@dataclass
class Header:
    functions: list[Function]
    ends: dict[str, str]  # of each type of handles, the function that destroys them
    sized: set[str]
    callbacks: dict[str, Function]

    @property
    def opaque(self):
        return set(self.ends)


def function(entry):
    parameters = [
        Parameter(p["type"], p["name"], p.get("nullable", False), p.get("null_if", ""),
                  p.get("ownership", ""))
        for p in entry["parameters"]
    ]
    return Function(entry["name"], entry["result"], parameters)


def read(path):
    with open(path) as file:
        api = json.load(file)
    return Header(
        [function(entry) for entry in api["functions"]],
        {handle["name"]: handle.get("destroy", "") for handle in api["handles"]},
        {struct["name"] for struct in api["structs"] if struct["sized"]},
        {entry["name"]: function(entry) for entry in api["callbacks"]},
    )
