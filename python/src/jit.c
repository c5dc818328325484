/* jit.c: elementwise functions, whose extra arguments are a dictionary by name. */

#include "core.h"

enum { MOST_SCALARS = 32 };

struct scalars {
    tcuda_scalar items[MOST_SCALARS];
    size_t count;
    PyObject *kept; /* a copy, so that the names stay: other threads may change the dictionary */
};

static bool to_scalar(PyObject *name, PyObject *value, tcuda_scalar *scalar)
{
    if (!to_text(name, &scalar->name))
        return false;
    if (PyBool_Check(value)) {
        scalar->kind = TCUDA_SCALAR_BOOL;
        scalar->integer = value == Py_True;
    } else if (PyLong_Check(value)) {
        scalar->kind = TCUDA_SCALAR_INT;
        return to_int64(value, &scalar->integer);
    } else if (PyComplex_Check(value)) {
        scalar->kind = TCUDA_SCALAR_COMPLEX;
        scalar->real = PyComplex_RealAsDouble(value);
        scalar->imaginary = PyComplex_ImagAsDouble(value);
    } else {
        scalar->kind = TCUDA_SCALAR_DOUBLE;
        return to_double(value, &scalar->real);
    }
    return true;
}

/* The caller ends what is kept; of a failure there is nothing. */
static bool to_scalars(PyObject *object, struct scalars *scalars)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    scalars->count = 0;
    if (!PyDict_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "extra arguments are a dictionary");
        return false;
    }
    if (PyDict_Size(object) > MOST_SCALARS) {
        PyErr_SetString(PyExc_ValueError, "there are more than 32 extra arguments");
        return false;
    }
    scalars->kept = PyDict_Copy(object);
    while (scalars->kept && PyDict_Next(scalars->kept, &position, &name, &value)) {
        tcuda_scalar *scalar = &scalars->items[scalars->count++];
        *scalar = (tcuda_scalar){0};
        if (!to_scalar(name, value, scalar))
            Py_CLEAR(scalars->kept);
    }
    return scalars->kept;
}

/* A function with one result, or with some outputs. */
static PyObject *create(
    PyObject *self, PyObject *text, PyObject *extra, const int32_t *num_outputs)
{
    tcuda_jit_options options = TCUDA_INIT(tcuda_jit_options);
    struct scalars scalars;
    const char *code;
    tcuda_jit *jit = NULL;
    tcuda_status status;
    if (!to_text(text, &code) || !to_scalars(extra, &scalars))
        return NULL;
    options.scalars = scalars.items;
    options.num_scalars = scalars.count;
    Py_BEGIN_ALLOW_THREADS
    status = num_outputs ? tcuda_jit_create_multi(code, *num_outputs, &options, &jit)
                         : tcuda_jit_create(code, &options, &jit);
    Py_END_ALLOW_THREADS
    PyObject *result =
        status == TCUDA_STATUS_OK ? PyLong_FromVoidPtr(jit) : raise_status(self, status);
    Py_DECREF(scalars.kept);
    return result;
}

PyObject *py_jit_create(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return has_arguments("jit_create", nargs, 2) ? create(self, args[0], args[1], NULL) : NULL;
}

PyObject *py_jit_create_multi(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    int32_t num_outputs;
    if (!has_arguments("jit_create_multi", nargs, 3) || !to_int32(args[1], &num_outputs))
        return NULL;
    return create(self, args[0], args[2], &num_outputs);
}

PyObject *py_jit_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct scalars scalars;
    const void *inputs, *outputs;
    size_t num_inputs, num_outputs;
    void *jit;
    tcuda_status status;
    if (!has_arguments("jit_call", nargs, 4) || !to_pointer(args[0], &jit) ||
        !to_items(args[1], sizeof(tcuda_tensor), &inputs, &num_inputs) ||
        !to_items(args[3], sizeof(tcuda_tensor), &outputs, &num_outputs) ||
        !to_scalars(args[2], &scalars))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_jit_call(jit, inputs, num_inputs, scalars.items, scalars.count, outputs,
        num_outputs, NULL);
    Py_END_ALLOW_THREADS
    PyObject *result =
        status == TCUDA_STATUS_OK ? Py_NewRef(Py_None) : raise_status(self, status);
    Py_DECREF(scalars.kept);
    return result;
}
