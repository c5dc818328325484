/* adapters.c: C functions that CuPy calls for its memory. */

#include "core.h"

/* What cupy_functions was given. All of it is used with the GIL held. */
static struct {
    intptr_t (*current_stream)(void); /* CuPy's; -1 with an exception set: it failed */
    PyObject *handle_of;              /* the tcuda_stream of a native stream, or 0 */
    PyObject *fail;                   /* raises the exception for a failed allocation */
} cupy;

/* A stream of CuPy; handle NULL: tcuda takes the native one, as for default streams. */
struct cupy_stream {
    intptr_t native;
    tcuda_stream *handle;
};
static struct cupy_stream cached; /* what cupy_cache was given; zero: none */

/* The exception of this thread's last allocation, if it failed: CuPy does not look for one. */
static _Thread_local PyObject *failure;

/* CuPy's current stream; false with an exception set. */
static bool find_stream(struct cupy_stream *stream)
{
    stream->native = cupy.current_stream();
    if (stream->native == -1 && PyErr_Occurred())
        return false;
    stream->handle = stream->native == cached.native ? cached.handle : NULL;
    if (stream->handle || stream->native == 0)
        return true;
    PyObject *handle = PyObject_CallFunction(cupy.handle_of, "n", (Py_ssize_t)stream->native);
    bool found = handle && to_pointer(handle, (void **)&stream->handle);
    Py_XDECREF(handle);
    return found;
}

/* Keeps the exception that is set for py_cupy_malloc. */
static void *keep_failure(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XDECREF(failure);
    failure = value;
    return NULL;
}

static void *cupy_malloc(void *unused, size_t bytes, int device)
{
    struct cupy_stream stream;
    void *ptr = NULL;
    tcuda_status status;
    (void)unused;
    if (!find_stream(&stream))
        return keep_failure();
    Py_BEGIN_ALLOW_THREADS
    if (stream.handle)
        status = tcuda_malloc(bytes, device, stream.handle, &ptr);
    else
        status = tcuda_malloc_native(bytes, device, (struct CUstream_st *)stream.native, &ptr);
    Py_END_ALLOW_THREADS
    if (status == TCUDA_STATUS_OK)
        return ptr;
    Py_XDECREF(PyObject_CallFunction(cupy.fail, "nisi", (Py_ssize_t)bytes, (int)status,
        tcuda_last_error(), (int)tcuda_last_error_native()));
    return keep_failure();
}

/* Memory is freed where its last user is, perhaps on another stream than its own. */
static void cupy_free(void *unused, void *ptr, int device)
{
    struct cupy_stream stream;
    (void)unused;
    (void)device;
    bool found = find_stream(&stream);
    if (!found)
        PyErr_Clear(); /* the interpreter ends */
    Py_BEGIN_ALLOW_THREADS
    if (found && stream.handle)
        found = tcuda_record_stream(ptr, stream.handle) == TCUDA_STATUS_OK;
    else if (found)
        tcuda_torch_record_stream(ptr, (struct CUstream_st *)stream.native);
    tcuda_free(ptr);
    Py_END_ALLOW_THREADS
}

PyObject *py_cupy_malloc(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (!has_arguments("cupy_malloc", nargs, 2))
        return NULL;
    Py_CLEAR(failure); /* of a call of the allocator that was not made here */
    PyObject *memory = PyObject_CallFunctionObjArgs(args[0], args[1], NULL);
    if (memory && failure) {
        PyErr_SetObject((PyObject *)Py_TYPE(failure), failure);
        Py_CLEAR(memory);
    }
    Py_CLEAR(failure);
    return memory;
}

PyObject *py_cupy_functions(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (!has_arguments("cupy_functions", nargs, 3))
        return NULL;
    /* The name is what Cython writes for `cdef intptr_t get_current_stream_ptr()`. */
    void *current_stream = PyCapsule_GetPointer(args[0], "intptr_t (void)");
    if (!current_stream)
        return NULL;
    Py_XDECREF(cupy.handle_of);
    Py_XDECREF(cupy.fail);
    cupy.current_stream = (intptr_t(*)(void))(uintptr_t)current_stream;
    cupy.handle_of = Py_NewRef(args[1]);
    cupy.fail = Py_NewRef(args[2]);
    return Py_BuildValue("(NN)", PyLong_FromVoidPtr((void *)(uintptr_t)cupy_malloc),
        PyLong_FromVoidPtr((void *)(uintptr_t)cupy_free));
}

PyObject *py_cupy_cache(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *native, *handle;
    (void)self;
    if (!has_arguments("cupy_cache", nargs, 2) || !to_pointer(args[0], &native) ||
        !to_pointer(args[1], &handle))
        return NULL;
    cached = (struct cupy_stream){(intptr_t)native, handle};
    return Py_NewRef(Py_None);
}
