/* core.c: the module tcuda._core, its arguments, results and errors. */

#include "core.h"

#include <string.h>

bool has_arguments(const char *function, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted)
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, count);
    return count == wanted;
}

static bool is_in_range(bool in_range, const char *type)
{
    if (!in_range && !PyErr_Occurred())
        PyErr_Format(PyExc_OverflowError, "the number does not fit into %s", type);
    return in_range;
}

bool to_int64(PyObject *object, int64_t *value)
{
    *value = PyLong_AsLongLong(object);
    return *value != -1 || !PyErr_Occurred();
}

bool to_int32(PyObject *object, int32_t *value)
{
    int64_t number;
    if (!to_int64(object, &number) ||
        !is_in_range(number >= INT32_MIN && number <= INT32_MAX, "int32_t"))
        return false;
    *value = (int32_t)number;
    return true;
}

bool to_uint64(PyObject *object, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(object);
    return *value != UINT64_MAX || !PyErr_Occurred();
}

bool to_uint32(PyObject *object, uint32_t *value)
{
    uint64_t number;
    if (!to_uint64(object, &number) || !is_in_range(number <= UINT32_MAX, "uint32_t"))
        return false;
    *value = (uint32_t)number;
    return true;
}

bool to_size(PyObject *object, size_t *value)
{
    *value = PyLong_AsSize_t(object);
    return *value != SIZE_MAX || !PyErr_Occurred();
}

bool to_double(PyObject *object, double *value)
{
    *value = PyFloat_AsDouble(object);
    return *value != -1.0 || !PyErr_Occurred();
}

bool to_pointer(PyObject *object, void **value)
{
    *value = object == Py_None ? NULL : PyLong_AsVoidPtr(object);
    return *value || !PyErr_Occurred();
}

bool to_text(PyObject *object, const char **text)
{
    Py_ssize_t length = 0;
    *text = NULL;
    if (object == Py_None)
        return true;
    *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (*text && strlen(*text) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "embedded null character");
        return false;
    }
    return *text;
}

bool to_items(PyObject *object, size_t bytes, const void **items, size_t *count)
{
    char *content;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &content, &length) != 0)
        return false;
    if ((size_t)length % bytes != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of items of %zu bytes",
            length, bytes);
        return false;
    }
    *items = content;
    *count = (size_t)length / bytes;
    return true;
}

bool to_struct(PyObject *object, size_t bytes, const void **value)
{
    size_t count = 1;
    *value = NULL;
    if (object != Py_None && !to_items(object, bytes, value, &count))
        return false;
    if (count != 1)
        PyErr_Format(PyExc_ValueError, "expected %zu bytes, not %zu", bytes, count * bytes);
    return count == 1;
}

PyObject *from_text(const char *text)
{
    return text ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
}

PyObject *from_int32(const void *item)
{
    return PyLong_FromLong(*(const int32_t *)item);
}

PyObject *from_state(const void *item)
{
    return PyBytes_FromStringAndSize(item, TCUDA_RANDOM_STATE_BYTES);
}

void start_buffer(struct buffer *buffer, size_t bytes, size_t spare)
{
    buffer->items = buffer->inside;
    buffer->room = sizeof buffer->inside / bytes;
    buffer->count = 0;
    buffer->bytes = bytes;
    buffer->spare = spare;
}

bool grow_buffer(struct buffer *buffer)
{
    size_t wanted = buffer->count + buffer->spare;
    if (wanted <= buffer->room)
        return false;
    end_buffer(buffer);
    buffer->room = wanted + wanted / 4; /* it may have grown at the next call */
    buffer->items = PyMem_Malloc(buffer->room * buffer->bytes);
    return buffer->items;
}

void end_buffer(struct buffer *buffer)
{
    if (buffer->items != buffer->inside)
        PyMem_Free(buffer->items);
}

PyObject *text_of(const struct buffer *buffer)
{
    if (!buffer->items)
        return PyErr_NoMemory();
    return PyUnicode_DecodeUTF8(buffer->items, (Py_ssize_t)buffer->count, "replace");
}

PyObject *bytes_of(const struct buffer *buffer)
{
    if (!buffer->items)
        return PyErr_NoMemory();
    return PyBytes_FromStringAndSize(buffer->items, (Py_ssize_t)buffer->count);
}

static PyObject *list_of_items(
    const void *items, size_t count, size_t bytes, PyObject *(*convert)(const void *item))
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t index = 0; list && index < count; index++) {
        PyObject *item = convert((const char *)items + index * bytes);
        if (!item || PyList_SetItem(list, (Py_ssize_t)index, item) != 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *list_of(const struct buffer *buffer, PyObject *(*convert)(const void *item))
{
    if (!buffer->items)
        return PyErr_NoMemory();
    return list_of_items(buffer->items, buffer->count, buffer->bytes, convert);
}

static PyObject *from_handle(const void *item)
{
    return PyLong_FromVoidPtr(*(void *const *)item);
}

PyObject *list_of_handles(void *const *handles, size_t count)
{
    return list_of_items(handles, count, sizeof *handles, from_handle);
}

struct state {
    PyObject *error_for; /* tcuda.errors.error_for */
};

PyObject *raise_status(PyObject *module, tcuda_status status)
{
    struct state *state = PyModule_GetState(module);
    PyObject *error = PyObject_CallFunction(
        state->error_for, "isi", (int)status, tcuda_last_error(), (int)tcuda_last_error_native());
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

static int fill_module(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    /* Callbacks take the GIL of the main interpreter, and there is one gate for them. */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "tcuda works in the main interpreter alone");
        return -1;
    }
    PyObject *errors = PyImport_ImportModule("tcuda.errors");
    if (!errors)
        return -1;
    state->error_for = PyObject_GetAttrString(errors, "error_for");
    Py_DECREF(errors);
    if (!state->error_for || !watch_forks())
        return -1;
    for (const struct constant *constant = constants; constant->name; constant++)
        if (PyModule_AddIntConstant(module, constant->name, constant->value) != 0)
            return -1;
    return 0;
}

static int traverse_module(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = PyModule_GetState(module);
    Py_VISIT(state->error_for);
    return 0;
}

static int clear_module(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    Py_CLEAR(state->error_for);
    return 0;
}

PyMODINIT_FUNC PyInit__core(void)
{
    static PyModuleDef_Slot slots[] = {
        {Py_mod_exec, fill_module},
        {0, NULL},
    };
    static PyModuleDef definition = {
        PyModuleDef_HEAD_INIT,
        .m_name = "tcuda._core",
        .m_doc = "The functions of tcuda.h, without the prefix tcuda_.",
        .m_size = sizeof(struct state),
        .m_methods = methods,
        .m_slots = slots,
        .m_traverse = traverse_module,
        .m_clear = clear_module,
    };
    return PyModuleDef_Init(&definition);
}
