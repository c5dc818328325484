/* callbacks.c: functions of Python that tcuda calls, on threads of its own. */

#include "core.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* A thread that takes the GIL while the interpreter ends would never return to the driver. So the
 * end of the interpreter first closes this gate and waits until no callback is inside. */
static atomic_bool closed;
static atomic_int inside;

bool enter_python(PyGILState_STATE *state)
{
    atomic_fetch_add(&inside, 1);
    if (atomic_load(&closed)) {
        atomic_fetch_sub(&inside, 1);
        return false;
    }
    *state = PyGILState_Ensure();
    return true;
}

void leave_python(PyGILState_STATE state)
{
    PyGILState_Release(state);
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

/* Takes a reference for tcuda, which drop_callable ends. */
static bool keep_callable(PyObject *callable)
{
    if (!PyCallable_Check(callable)) {
        PyErr_SetString(PyExc_TypeError, "the callback is not callable");
        return false;
    }
    Py_INCREF(callable);
    return true;
}

static void drop_callable(void *callable)
{
    PyGILState_STATE state;
    if (!enter_python(&state))
        return;
    Py_DECREF((PyObject *)callable);
    leave_python(state);
}

/* Ends the call of a callback: an exception is reported, because the caller is C. */
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
    PyGILState_STATE state;
    if (!enter_python(&state))
        return;
    is_true(callable, PyObject_CallNoArgs(callable));
    leave_python(state);
}

static void on_log_line(void *callable, tcuda_log_level level, const char *message)
{
    PyGILState_STATE state;
    if (!enter_python(&state))
        return;
    is_true(callable, PyObject_CallFunction(callable, "is", (int)level, message));
    leave_python(state);
}

static int32_t on_out_of_memory(
    void *callable, int32_t device, size_t bytes, size_t limit_bytes, size_t free_bytes)
{
    PyGILState_STATE state;
    if (!enter_python(&state))
        return 0;
    bool has_freed = is_true(callable,
        PyObject_CallFunction(callable, "innn", (int)device, (Py_ssize_t)bytes,
            (Py_ssize_t)limit_bytes, (Py_ssize_t)free_bytes));
    leave_python(state);
    return has_freed;
}

static void on_graph_event(void *callable, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec)
{
    PyGILState_STATE state;
    (void)cu_graph;
    (void)cu_graph_exec; /* tcuda_graph_native has both */
    if (!enter_python(&state))
        return;
    is_true(callable,
        PyObject_CallFunction(callable, "IN", (unsigned)event, PyLong_FromVoidPtr(graph)));
    leave_python(state);
}

/* What a registration returns; one that failed does not call drop_callable. */
static PyObject *end_registration(PyObject *self, PyObject *callable, tcuda_status status)
{
    if (status == TCUDA_STATUS_OK)
        return Py_NewRef(Py_None);
    raise_status(self, status);
    Py_XDECREF(callable);
    return NULL;
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
        level, callable ? on_log_line : NULL, callable, callable ? drop_callable : NULL);
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
    status = tcuda_stream_add_callback(stream, on_stream, args[1], drop_callable);
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
    status = tcuda_memory_on_out_of_memory(on_out_of_memory, args[0], drop_callable, &observer);
    Py_END_ALLOW_THREADS
    if (status == TCUDA_STATUS_OK)
        return PyLong_FromVoidPtr(observer);
    return end_registration(self, args[0], status);
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
    status = tcuda_graph_on_event(graph, events, on_graph_event, args[2], drop_callable, &observer);
    Py_END_ALLOW_THREADS
    if (status == TCUDA_STATUS_OK)
        return PyLong_FromVoidPtr(observer);
    return end_registration(self, args[2], status);
}
