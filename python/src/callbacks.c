/* callbacks.c: functions of Python that tcuda calls, also on threads of its own. */

#include "core.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* A thread that takes the GIL while the interpreter ends would never return to the driver. So the
 * end of the interpreter first closes this gate and waits until no callback is inside. */
static atomic_bool closed;
static atomic_int inside;

bool enter_python(struct python *python)
{
    atomic_fetch_add(&inside, 1);
    if (atomic_load(&closed)) {
        atomic_fetch_sub(&inside, 1);
        return false;
    }
    python->gil = PyGILState_Ensure();
    PyErr_Fetch(&python->type, &python->value, &python->traceback);
    return true;
}

void leave_python(struct python *python)
{
    PyErr_Restore(python->type, python->value, python->traceback);
    PyGILState_Release(python->gil);
    atomic_fetch_sub(&inside, 1);
}

/* A forked child has none of the threads that are inside. */
static void forget_threads(void)
{
    atomic_store(&inside, 0);
}

bool watch_forks(void)
{
    if (pthread_atfork(NULL, NULL, forget_threads) == 0)
        return true;
    PyErr_NoMemory();
    return false;
}

PyObject *close_callbacks(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    atomic_store(&closed, true);
    Py_BEGIN_ALLOW_THREADS
    while (atomic_load(&inside) > 0)
        sched_yield();
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

/* Takes a reference for tcuda, which drop_object ends. */
static bool keep_callable(PyObject *callable)
{
    if (!PyCallable_Check(callable)) {
        PyErr_SetString(PyExc_TypeError, "the callback is not callable");
        return false;
    }
    Py_INCREF(callable);
    return true;
}

static void drop_object(void *object)
{
    struct python python;
    if (!enter_python(&python))
        return;
    Py_DECREF((PyObject *)object);
    leave_python(&python);
}

/* Ends the call of a callback: an exception is reported, because the caller is C. */
static void end_callback(PyObject *callable, PyObject *result)
{
    if (!result)
        PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
}

/* The same for one whose result matters. */
static bool is_true(PyObject *callable, PyObject *result)
{
    int truth = result ? PyObject_IsTrue(result) : -1;
    if (truth < 0)
        PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
    return truth > 0;
}

static void on_stream(void *callable)
{
    struct python python;
    if (!enter_python(&python))
        return;
    end_callback(callable, PyObject_CallNoArgs(callable));
    leave_python(&python);
}

static void on_log_line(void *callable, tcuda_log_level level, const char *message)
{
    struct python python;
    if (!enter_python(&python))
        return;
    end_callback(callable, PyObject_CallFunction(callable, "is", (int)level, message));
    leave_python(&python);
}

static PyObject *call_with_sizes(
    PyObject *callable, int32_t device, size_t first, size_t second, size_t third)
{
    return PyObject_CallFunction(callable, "iKKK", (int)device, (unsigned long long)first,
        (unsigned long long)second, (unsigned long long)third);
}

static int32_t on_out_of_memory(
    void *callable, int32_t device, size_t bytes, size_t limit_bytes, size_t free_bytes)
{
    struct python python;
    if (!enter_python(&python))
        return 0;
    bool has_freed =
        is_true(callable, call_with_sizes(callable, device, bytes, limit_bytes, free_bytes));
    leave_python(&python);
    return has_freed;
}

static void on_rejection(
    void *callable, int32_t device, size_t bytes, size_t allocated_bytes, size_t total_bytes)
{
    struct python python;
    if (!enter_python(&python))
        return;
    end_callback(callable, call_with_sizes(callable, device, bytes, allocated_bytes, total_bytes));
    leave_python(&python);
}

static void on_memory_event(void *callable, const tcuda_memory_event *event)
{
    struct python python;
    if (!enter_python(&python))
        return;
    int collects = PyGC_Disable(); /* the end of an object cannot call tcuda here */
    end_callback(callable, PyObject_CallFunction(callable, "N", from_tcuda_memory_event(event)));
    if (collects)
        PyGC_Enable();
    leave_python(&python);
}

static int32_t is_stream_in_set(void *callable, struct CUstream_st *cu_stream)
{
    struct python python;
    if (!enter_python(&python))
        return 0;
    int collects = PyGC_Disable(); /* the end of an object cannot call tcuda here */
    bool is_in_set =
        is_true(callable, PyObject_CallFunction(callable, "N", PyLong_FromVoidPtr(cu_stream)));
    if (collects)
        PyGC_Enable();
    leave_python(&python);
    return is_in_set;
}

/* May tcuda.sanitizer have reports that no call has raised yet? */
static atomic_bool has_reports;

static void on_report(void *callable, const tcuda_sanitizer_report *report)
{
    struct python python;
    if (!enter_python(&python))
        return;
    PyObject *content = from_tcuda_sanitizer_report(report);
    if (is_true(callable, PyObject_CallFunction(callable, "N", content)))
        atomic_store(&has_reports, true);
    leave_python(&python);
}

PyObject *end_call(void)
{
    if (!atomic_load_explicit(&has_reports, memory_order_relaxed))
        return Py_NewRef(Py_None);
    PyObject *sanitizer = PyImport_ImportModule("tcuda.sanitizer");
    PyObject *result = sanitizer ? PyObject_CallMethod(sanitizer, "raise_reports", NULL) : NULL;
    Py_XDECREF(sanitizer);
    return result;
}

static void on_graph_event(void *callable, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec)
{
    struct python python;
    (void)cu_graph;
    (void)cu_graph_exec; /* tcuda_graph_native has both */
    if (!enter_python(&python))
        return;
    end_callback(callable,
        PyObject_CallFunction(callable, "IN", (unsigned)event, PyLong_FromVoidPtr(graph)));
    leave_python(&python);
}

/* What a registration returns; one that failed does not call drop_object. */
static PyObject *end_registration(PyObject *self, PyObject *object, tcuda_status status)
{
    if (status == TCUDA_STATUS_OK)
        return Py_NewRef(Py_None);
    raise_status(self, status);
    Py_XDECREF(object);
    return NULL;
}

/* The same for one with an observer. */
static PyObject *end_observed(
    PyObject *self, PyObject *callable, tcuda_observer *observer, tcuda_status status)
{
    if (status == TCUDA_STATUS_OK)
        return PyLong_FromVoidPtr(observer);
    return end_registration(self, callable, status);
}

PyObject *py_set_log_callback(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    int32_t level;
    tcuda_status status;
    if (!has_arguments("set_log_callback", nargs, 2) || !to_int32(args[0], &level))
        return NULL;
    PyObject *callable = args[1] == Py_None ? NULL : args[1];
    if (callable && !keep_callable(callable))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_set_log_callback(
        level, callable ? on_log_line : NULL, callable, callable ? drop_object : NULL);
    Py_END_ALLOW_THREADS
    return end_registration(self, callable, status);
}

PyObject *py_stream_add_callback(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *stream;
    tcuda_status status;
    if (!has_arguments("stream_add_callback", nargs, 2) || !to_pointer(args[0], &stream) ||
        !keep_callable(args[1]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_stream_add_callback(stream, on_stream, args[1], drop_object);
    Py_END_ALLOW_THREADS
    return end_registration(self, args[1], status);
}

PyObject *py_memory_on_out_of_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_observer *observer = NULL;
    tcuda_status status;
    if (!has_arguments("memory_on_out_of_memory", nargs, 1) || !keep_callable(args[0]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_memory_on_out_of_memory(on_out_of_memory, args[0], drop_object, &observer);
    Py_END_ALLOW_THREADS
    return end_observed(self, args[0], observer, status);
}

PyObject *py_graph_on_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *graph;
    uint32_t events;
    tcuda_observer *observer = NULL;
    tcuda_status status;
    if (!has_arguments("graph_on_event", nargs, 3) || !to_pointer(args[0], &graph) ||
        !to_uint32(args[1], &events) || !keep_callable(args[2]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_graph_on_event(graph, events, on_graph_event, args[2], drop_object, &observer);
    Py_END_ALLOW_THREADS
    return end_observed(self, args[2], observer, status);
}

PyObject *py_memory_on_rejection(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_observer *observer = NULL;
    tcuda_status status;
    if (!has_arguments("memory_on_rejection", nargs, 1) || !keep_callable(args[0]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_memory_on_rejection(on_rejection, args[0], drop_object, &observer);
    Py_END_ALLOW_THREADS
    return end_observed(self, args[0], observer, status);
}

PyObject *py_memory_on_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_observer *observer = NULL;
    tcuda_status status;
    if (!has_arguments("memory_on_event", nargs, 1) || !keep_callable(args[0]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_memory_on_event(on_memory_event, args[0], drop_object, &observer);
    Py_END_ALLOW_THREADS
    return end_observed(self, args[0], observer, status);
}

PyObject *py_mem_pool_begin_streams(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *pool;
    int32_t device;
    tcuda_status status;
    if (!has_arguments("mem_pool_begin_streams", nargs, 3) || !to_pointer(args[0], &pool) ||
        !to_int32(args[1], &device) || !keep_callable(args[2]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_mem_pool_begin_streams(pool, device, is_stream_in_set, args[2], drop_object);
    Py_END_ALLOW_THREADS
    return end_registration(self, args[2], status);
}

PyObject *py_graph_retain(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *graph;
    int32_t synchronize;
    tcuda_status status;
    if (!has_arguments("graph_retain", nargs, 3) || !to_pointer(args[0], &graph) ||
        !to_int32(args[2], &synchronize))
        return NULL;
    Py_INCREF(args[1]);
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_graph_retain(graph, args[1], drop_object, synchronize);
    Py_END_ALLOW_THREADS
    return end_registration(self, args[1], status);
}

PyObject *py_sanitizer_enable(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    int32_t with_frames;
    tcuda_status status;
    if (!has_arguments("sanitizer_enable", nargs, 3) ||
        !to_size(args[0], &options.max_reports) || !to_int32(args[2], &with_frames))
        return NULL;
    if (with_frames)
        options.frames = python_frames;
    if (args[1] != Py_None) {
        if (!keep_callable(args[1]))
            return NULL;
        options.report = on_report;
        options.user_data = args[1];
        options.destroy = drop_object;
    }
    atomic_store(&has_reports, false);
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_sanitizer_enable(&options);
    Py_END_ALLOW_THREADS
    return end_registration(self, options.user_data, status);
}
