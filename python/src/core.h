/* core.h: what the wrappers of tcuda._core have in common: arguments, results, errors. */

#ifndef TCUDA_PYTHON_CORE_H
#define TCUDA_PYTHON_CORE_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <tcuda.h>

/* Arguments. Each returns false with an exception set if the object is not such a value. */
bool has_arguments(const char *function, Py_ssize_t count, Py_ssize_t wanted);
bool to_int32(PyObject *object, int32_t *value);
bool to_uint32(PyObject *object, uint32_t *value);
bool to_int64(PyObject *object, int64_t *value);
bool to_uint64(PyObject *object, uint64_t *value);
bool to_size(PyObject *object, size_t *value);
bool to_double(PyObject *object, double *value);
bool to_pointer(PyObject *object, void **value);                          /* None: NULL */
bool to_text(PyObject *object, const char **text);                        /* None: NULL */
bool to_struct(PyObject *object, size_t bytes, const void **value);       /* None: NULL */
bool to_items(PyObject *object, size_t bytes, const void **items, size_t *count);

/* Results: new references, or NULL with an exception set. */
PyObject *from_text(const char *text); /* NULL: None */
PyObject *from_int32(const void *item);
PyObject *from_state(const void *item);

/* The exception for a status and this thread's last error. Returns NULL. */
PyObject *raise_status(PyObject *module, tcuda_status status);

/* Text or a list that a function of tcuda writes: a call that needs more room is repeated. */
struct buffer {
    void *items;
    size_t room, count; /* in items */
    size_t bytes;       /* of an item */
    size_t spare;       /* items that count leaves out: the NUL of a text */
    _Alignas(8) char inside[8192]; /* enough for all statistics as text */
};

void start_buffer(struct buffer *buffer, size_t bytes, size_t spare);
bool grow_buffer(struct buffer *buffer); /* true: call again */
void end_buffer(struct buffer *buffer);
PyObject *text_of(const struct buffer *buffer);
PyObject *bytes_of(const struct buffer *buffer);
PyObject *list_of(const struct buffer *buffer, PyObject *(*convert)(const void *item));
PyObject *list_of_handles(void *const *handles, size_t count);

/* The handles of arrays that the library has filled in, as a list; ends those that fail. */
PyObject *handles_of(tcuda_tensor *tensors, size_t count);

/* Arrays, in arrays.c, and what makes arrays of arrays, in comm.c. */
PyObject *py_tensor_empty(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_view(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_from_capsule(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_to_capsule(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_info(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_set_origin(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_list(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_tensor_destroy(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_broadcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_broadcast_coalesced(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_reduce_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_reduce_add_coalesced(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_scatter(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_scatter_into(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_comm_gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_communicator_init_all(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Elementwise functions, in jit.c. */
PyObject *py_jit_create(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_jit_create_multi(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_jit_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Functions with callbacks, in callbacks.c and history.c, and with lists of handles (handles.c). */
PyObject *py_set_log_callback(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_stream_add_callback(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_memory_on_out_of_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_graph_on_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_memory_record_history(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_memory_on_rejection(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_memory_on_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_mem_pool_begin_streams(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_graph_retain(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_sanitizer_enable(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_graph_pools(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_sm_partition_split(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_sm_partition_split_groups(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *close_callbacks(PyObject *self, PyObject *unused);

/* For CuPy, in adapters.c. */
PyObject *py_cupy_functions(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_cupy_malloc(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *py_cupy_cache(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Once, before the first callback; false with an exception set. */
bool watch_forks(void);

/* What a callback takes and gives back: the GIL, and an exception that this thread has, because the
 * end of an object may call tcuda while one is raised. */
struct python {
    PyGILState_STATE gil;
    PyObject *type, *value, *traceback;
};

/* false: the interpreter ends, and Python can no longer be called. */
bool enter_python(struct python *python);
void leave_python(struct python *python);

/* This thread's stack, a tcuda_frames_fn. */
size_t python_frames(void *unused, tcuda_frame *frames, size_t capacity);

/* None; NULL with an exception set if a report of the sanitizer is to be raised on this thread. */
PyObject *end_call(void);

/* Written by generate.py. */
PyObject *from_tcuda_memory_event(const void *event);
PyObject *from_tcuda_sanitizer_report(const void *report);
struct constant {
    const char *name;
    long value;
};
extern PyMethodDef methods[];
extern const struct constant constants[];

#endif
