"""Writes a C program that calls every function of tcuda.h with spoiled arguments.

usage: generate.py API_JSON OUTPUT

Each function is called with valid arguments, then with each pointer NULL, and with each handle
stale, of another kind, random bits and a stack address. NULL must fail unless the parameter is
nullable: the front page of the header or the function's comment says that it "may be NULL". A
function that is added to the header is tested by that alone; if valid arguments for it cannot be
guessed, add them to the tables.
"""

import re
import sys

import header as reader

# Values by the name of the parameter; 0 otherwise.
NUMBERS = {
    "device": "now_device", "bytes": "4096", "len": "256", "capacity": "4", "count": "1",
    "value_bytes": "4", "width_bytes": "16", "rows": "2", "dst_pitch_bytes": "64",
    "src_pitch_bytes": "64", "fraction": "1.0", "level": "TCUDA_LOG_OFF", "high": "2", "p": "0.5",
    "stddev": "1", "rate": "1", "sigma": "1", "num_inputs": "1", "num_outputs": "1",
}
TEXTS = {
    "key": "allocated_bytes.all.peak", "function": "cuMemMap", "name": "sim",
    "path": "/nonexistent/tcuda.json", "config": "", "message": "test",
    "options": "devices=1", "code": "template <typename T> T f(T x) { return x; }",
    "source": "__global__ void nothing() {}",
}
# Where that depends on the function.
TEXTS_OF = {
    ("tcuda_kernel_compile", "name"): "nothing",
    ("tcuda_file_open", "path"): "/dev/zero",
    ("tcuda_call", "function"): "tcuda_init",
    ("tcuda_jit_create_multi", "code"): "template <typename T> void f(T x, T &y) { y = x; }",
}
# Numbers that depend on the function.
NUMBERS_OF = {
    ("tcuda_sm_partition_split", "capacity"): "1",
    ("tcuda_call", "count"): "0",
    ("tcuda_mem_pool_from_id", "id1"): "7",
    ("tcuda_memory_advise", "advice"): "TCUDA_ADVISE_SET_READ_MOSTLY",
    ("tcuda_memory_attach", "flags"): "TCUDA_ATTACH_GLOBAL",
    ("tcuda_file_open", "flags"): "TCUDA_FILE_READ | TCUDA_FILE_WRITE | TCUDA_FILE_STAGING",
}
# Parameters that may be NULL, and without which valid arguments are not.
NEEDED = {("tcuda_green_context_create", "partition")}
# Handles that may be NULL in every function (front page, "NULL").
NULL_TYPES = {"tcuda_stream", "tcuda_generator"}
# Changes the state of the process or of the thread: runs alone.
ALONE = re.compile(
    r"_(shutdown|select|inject|set|set_current|set_log_callback|exchange|enable|enable_peer_access"
    r"|begin_streams|end_streams|on_event|on_rejection"
    r"|disable|begin|end|push|pop|record_history|wake|sleep|abort)$"
)
# Handles that cannot be made where a library is missing; then what is stale is one that never was.
ABSENT = {"tcuda_communicator"}
# Have a status and work in the child of a process that initialised: how it learns that others do
# not, seeds, which torch ignores there, and what only a tool receives.
IN_A_CHILD = {"tcuda_last_error_message", "tcuda_is_initialized", "tcuda_is_available",
              "tcuda_random_manual_seed", "tcuda_random_manual_seed_all", "tcuda_random_seed",
              "tcuda_random_seed_all", "tcuda_nvtx_mark", "tcuda_nvtx_range_push",
              "tcuda_nvtx_range_pop", "tcuda_nvtx_range_start", "tcuda_nvtx_range_end"}
# Without a driver every function that takes a device or a stream that may be NULL gives
# TCUDA_STATUS_NO_DRIVER, with the current device and NULL. But these have nothing to do then:
WITHOUT_DRIVER = {
    "INVALID_DEVICE": "memory_snapshot_event memory_snapshot_event_count",
    "OK": """device_set device_exchange stream_set_current stream_exchange stream_wait_event
        event_wait stream_is_capturing memory_stats memory_stat memory_stat_keys memory_stats_json
        memory_allocated
        memory_max_allocated memory_reserved memory_max_reserved random_manual_seed random_seed
        random_state_set""",
    # There is no such block, and no such handle can be made.
    "INVALID_POINTER": "host_record ipc_close",
    "INVALID_HANDLE": """communicator_send communicator_recv communicator_broadcast
        communicator_all_reduce communicator_reduce communicator_all_gather
        communicator_reduce_scatter graphed_callable_call graphed_callable_call_backward
        kernel_launch kernel_properties file_read file_write""",
    "INVALID_ARGUMENT": "sanitizer_access",  # its mode is none
}
# Neither, but what they are asked about is never on a device then.
ALSO_WITHOUT_DRIVER = {"tcuda_device_of": "OK", "tcuda_event_query": "OK",
                       "tcuda_event_synchronize": "OK", "tcuda_is_available": "OK",
                       "tcuda_device_count": "OK"}
# What negative devices other than TCUDA_CURRENT_DEVICE give that is not
# TCUDA_STATUS_INVALID_DEVICE.
NEGATIVE_DEVICE = {"tcuda_device_set": "OK", "tcuda_device_exchange": "OK",
                   "tcuda_communicator_init_rank": "INVALID_ARGUMENT"}  # its id is none
# Never called: stops the process or other users of the machine.
SKIPPED = set()


class Generator:
    def __init__(self, header):
        self.header = header
        self.by_name = {function.name: function for function in header.functions}
        self.makers = {}  # by type: in the order in which C must see them
        needs_others = {name.removesuffix("_create") for name, _ in NEEDED}
        for type in sorted(header.opaque, key=lambda type: (type in needs_others, type)):
            maker = self.maker(type)
            if maker and self.header.ends[type]:
                self.makers[type] = maker

    def maker(self, type):
        """The function that makes a handle: _create, else the first that gives an owned one."""
        makers = [
            function for function in self.header.functions
            if function.result == "tcuda_status" and function.parameters
            and function.parameters[-1].type == f"{type} **"
            and function.parameters[-1].ownership == "owned"
        ]
        makers.sort(key=lambda function: not function.name == f"{type}_create")
        return makers[0] if makers else None

    # ---- Parameters ----

    def is_handle(self, p):
        return p.is_pointer and not p.is_const and p.pointee in self.header.opaque

    def is_native(self, p):
        return p.is_pointer and p.pointee.startswith("struct ") and not p.pointee.endswith("*")

    def is_device_memory(self, function, p):
        return p.pointee == "void" and p.name in ("ptr", "dst", "src")

    def is_output(self, p):
        host = p.pointee != "void" or p.name == "buf"
        return p.is_pointer and not p.is_const and host and not self.is_handle(p) \
            and not self.is_native(p)

    def may_be_null(self, function, p):
        """May it be NULL where the others have the values above?"""
        if not p.null_if:
            return p.nullable
        length = p.null_if.removesuffix(" is 0")
        names = [other.name for other in function.parameters]
        return length in names and self.number(function, length) == "0"

    def can_be_null(self, p):
        return p.is_pointer or p.type in self.header.callbacks

    def number(self, function, name):
        return NUMBERS_OF.get((function.name, name), NUMBERS.get(name, "0"))

    def valid(self, function, index, spoil=True):
        """A C expression for a valid argument, which the harness can spoil."""
        p = function.parameters[index]
        number = index if spoil else -1
        if self.is_handle(p):
            is_left_out = not spoil and p.nullable and (function.name, p.name) not in NEEDED
            if p.pointee not in self.makers or is_left_out:
                return "NULL"
            return f"HANDLE({number}, {p.pointee}, {self.other(p.pointee)})"
        if p.type in self.header.callbacks:
            value = f"callback_{p.type}"
        elif not p.is_pointer:
            return self.number(function, p.name)
        elif p.pointee == "char" and p.is_const:
            text = TEXTS_OF.get((function.name, p.name), TEXTS.get(p.name, "x"))
            value = f'"{text}"'
        elif self.is_native(p) or p.name == "user_data":
            return "NULL"
        elif p.pointee == "tcuda_callable":
            value = "input_callable()"
        elif self.is_device_memory(function, p):
            host = "host_" if function.name.startswith("tcuda_host") else ""
            value = f"make_{host}memory()"
        elif p.pointee == "tcuda_tensor" and p.is_const:
            value = "make_tensor()"
        elif p.pointee == "tcuda_error":
            value = "error_object()"
        elif self.is_output(p):
            value = self.output(function, p)
        else:
            size = f"sizeof({p.pointee})" if p.pointee in self.header.sized else "0"
            value = f"input_bytes({size})"
        return f"POINTER({number}, {value})"

    def output(self, function, p):
        if p.name == "buf":
            return "output_bytes(256, 0)"
        names = [other.name for other in function.parameters]
        many = "4 * " if {"capacity", "count", "num_outputs"} & set(names) else ""
        # States are bytes in the header.
        is_state = p.pointee == "uint8_t" and p.name.startswith("state")
        size = "TCUDA_RANDOM_STATE_BYTES" if is_state else f"sizeof({p.pointee})"
        return f"output_bytes({many}{size}, {size if p.pointee in self.header.sized else 0})"

    def other(self, type):
        """A type whose handles are not this one's."""
        return next((other for other in self.makers if other not in (type, *ABSENT)), type)

    def takes_device(self, function):
        return function.result == "tcuda_status" and any(
            p.name == "device" and p.type == "int32_t" for p in function.parameters)

    def without_driver(self, function):
        """The status that a function gives without a driver, or UNTOLD."""
        if function.name in ALSO_WITHOUT_DRIVER:
            return f"TCUDA_STATUS_{ALSO_WITHOUT_DRIVER[function.name]}"
        takes_stream = any(self.is_handle(p) and p.nullable and p.pointee in NULL_TYPES
                           for p in function.parameters)
        if function.result != "tcuda_status" or function.name.endswith("_destroy") or not (
                takes_stream or self.takes_device(function)):
            return "UNTOLD"
        for status, names in WITHOUT_DRIVER.items():
            if function.name.removeprefix("tcuda_") in names.split():
                return f"TCUDA_STATUS_{status}"
        return "TCUDA_STATUS_NO_DRIVER"

    def of_negative(self, function):
        if not self.takes_device(function):
            return "UNTOLD"
        return f"TCUDA_STATUS_{NEGATIVE_DEVICE.get(function.name, 'INVALID_DEVICE')}"

    # ---- C ----

    def call(self, function, index):
        """The call by itself, and the function that makes its arguments and has it called."""
        result = function.result
        fields = [f"    {p.declaration};" for p in function.parameters] or ["    int none;"]
        arguments = ", ".join(f"with->{p.name}" for p in function.parameters)
        call = f"{function.name}({arguments})"
        lines = [f"struct arguments_{index} {{", *fields, "};", ""]
        lines += [f"static tcuda_status perform_{index}(void *arguments)", "{"]
        if function.parameters:
            lines.append(f"    const struct arguments_{index} *with = arguments;")
        else:
            lines.append("    (void)arguments;")
        if result == "tcuda_status":
            if function.name != "tcuda_call":
                lines += self.named_call(function)
            lines += [f"    return {call};", "}", ""]
        else:
            lines += [f"    {'' if result == 'void' else '(void)!'}{call};",
                      "    return TCUDA_STATUS_OK;", "}", ""]
        lines += [f"static tcuda_status call_{index}(void)", "{"]
        for i, p in enumerate(function.parameters):
            lines.append(f"    {p.declaration} = {self.valid(function, i)};")
        values = ", ".join(p.name for p in function.parameters) or "0"
        lines.append(f"    struct arguments_{index} with = {{ {values} }};")
        lines.append(f"    tcuda_status outcome = call_in_place(perform_{index}, &with);")
        for p in function.parameters:
            drop = self.drop_of_output(function, p)
            if drop and result == "tcuda_status":
                lines.append(f"    if (outcome == TCUDA_STATUS_OK && {p.name} != NULL)")
                lines.append(f"        drop_later({drop}, *{p.name});")
        return lines + ["    return outcome;", "}", ""]

    def named_call(self, function):
        """The call by tcuda_call, which has each argument in 8 bytes."""
        count = len(function.parameters)
        values = []
        for p in function.parameters:
            value = f"with->{p.name}"
            if p.type == "double":
                values.append(f"bits_of({value})")
            elif self.can_be_null(p):
                values.append(f"(uint64_t)(uintptr_t){value}")
            else:
                values.append(f"(uint64_t){value}")
        lines = ["    if (are_by_name) {"]
        if count > 0:
            lines.append(f"        const uint64_t values[] = {{ {', '.join(values)} }};")
        values = "values" if count > 0 else "NULL"
        return lines + [f'        return call_by_name("{function.name}", {values}, {count});',
                        "    }"]

    def drop_of_output(self, function, p):
        type = p.pointee.rstrip("* ")
        if p.type == "void **" and function.name in ("tcuda_malloc", "tcuda_managed_malloc"):
            return "drop_memory"
        if p.type == "void **" and function.name == "tcuda_host_malloc":
            return "drop_host_memory"
        owned = p.type.endswith("**") and type in self.makers and p.ownership == "owned"
        return f"drop_{type}" if owned else None

    def make(self, type):
        maker = self.makers[type]
        arguments = [self.valid(maker, i, spoil=False) for i in range(len(maker.parameters) - 1)]
        return [
            f"static void drop_{type}(void *handle)", "{",
            f"    (void)!{self.header.ends[type]}(({type} *)handle);", "}", "",
            f"static {type} *make_{type}(void)", "{",
            f"    {type} *handle = NULL;",
            f"    if ({maker.name}({', '.join(arguments + ['&handle'])}) == TCUDA_STATUS_OK)",
            f"        drop_later(drop_{type}, handle);",
            "    return handle;", "}", "",
            f"static {type} *stale_{type}(void)", "{",
            f"    {type} *handle = make_{type}();",
            f"    drop_{type}(handle);",
            f"    return handle != NULL ? handle : ({type} *)(uintptr_t)0x4f00000001000000;",
            "}", "",
        ]

    def memory(self):
        lines = []
        device, host = "4096, TCUDA_CURRENT_DEVICE, NULL, &ptr", "4096, &ptr"
        for prefix, arguments in (("", device), ("host_", host)):
            if f"tcuda_{prefix}malloc" not in self.by_name:
                continue
            lines += [
                f"static void drop_{prefix}memory(void *ptr)", "{",
                f"    (void)!tcuda_{prefix}free(ptr);", "}", "",
                f"static void *make_{prefix}memory(void)", "{",
                "    void *ptr = NULL;",
                "    if (is_forked || has_no_driver)",
                "        return on_stack;",
                f"    CHECK_OK(tcuda_{prefix}malloc({arguments}));",
                f"    drop_later(drop_{prefix}memory, ptr);",
                "    return ptr;", "}", "",
            ]
        return lines

    def tensor(self):
        if "tcuda_random_uniform" not in self.by_name:
            return []
        return [
            "static tcuda_tensor *make_tensor(void)", "{",
            "    static int64_t shape[] = { 16 };",
            "    static tcuda_tensor tensor = { .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,",
            "        .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape };",
            "    tensor.data = make_memory();",
            "    return &tensor;", "}", "",
        ]

    def callback(self, type):
        callback = self.header.callbacks[type]
        result, names = callback.result, [p.name for p in callback.parameters]
        parameters = ", ".join(p.declaration for p in callback.parameters)
        space = "" if result.endswith("*") else " "
        lines = [f"static {result}{space}callback_{type}({parameters})", "{"]
        lines += [f"    (void){name};" for name in names]
        if result != "void":
            lines.append("    return 0;")
        return lines + ["}", ""]

    def cases(self, function, index):
        """Rows of struct spoiled."""
        fails = False
        checked = function.result == "tcuda_status"
        for i, p in enumerate(function.parameters):
            row = lambda how, expected: f'    {{ {index}, {i}, "{p.name}", {how}, {expected} }},'
            if not self.can_be_null(p):
                continue
            if not checked or self.may_be_null(function, p):
                yield row("NIL", "NO_CRASH")
            elif self.is_handle(p):
                fails = True
                yield row("NIL", "INVALID_HANDLE")
            else:
                fails = True
                device = self.is_device_memory(function, p)
                yield row("NIL", "INVALID_POINTER" if device else "INVALID_ARGUMENT")
            if self.is_handle(p) and p.pointee in self.makers and checked:
                hows = ["STALE", "BITS", "STACK"] + (["FOREIGN"] if len(self.makers) > 1 else [])
                for how in hows:
                    yield row(how, "INVALID_HANDLE")
        if any(self.can_be_null(p) for p in function.parameters):
            expected = "SOME_FAILURE" if fails else "NO_CRASH"
            yield f'    {{ {index}, -2, "all", EVERY_POINTER_NIL, {expected} }},'

    def program(self):
        functions = [f for f in self.header.functions if f.name not in SKIPPED]
        used = {p.type for f in functions for p in f.parameters}
        lines = ["/* Written by c_tests/every_function/generate.py. */", '#include "harness.h"',
                 '#include "hooks.h"', ""]
        lines += self.memory() + self.tensor()
        for type in self.header.callbacks:
            if type in used:
                lines += self.callback(type)
        lines += [f"static {type} *make_{type}(void);" for type in self.makers] + [""]
        for type in self.makers:
            lines += self.make(type)
        for index, function in enumerate(functions):
            lines += self.call(function, index)
        lines.append("static const struct function functions[] = {")
        for index, function in enumerate(functions):
            alone = int(ALONE.search(function.name) is not None)
            refused = int(function.result == "tcuda_status" and function.name not in IN_A_CHILD)
            states = f"{self.without_driver(function)}, {self.of_negative(function)}"
            lines.append(
                f'    {{ "{function.name}", call_{index}, {alone}, {refused}, {states} }},')
        lines += ["};", "", "static const struct spoiled cases[] = {"]
        for index, function in enumerate(functions):
            lines += self.cases(function, index)
        lines += [
            "};", "", "int main(void)", "{",
            "    const int count = (int)(sizeof functions / sizeof functions[0]);",
            "#ifdef IN_HOOKS", "    (void)cases;", "    return run_in_hooks(functions, count);",
            "#else",
            "    return run_everything(functions, count, cases, sizeof cases / sizeof cases[0]);",
            "#endif", "}",
        ]
        return "\n".join(lines) + "\n"


def main():
    api, output = sys.argv[1:]
    with open(output, "w") as file:
        file.write(Generator(reader.read(api)).program())


main()
