/* handles.c: functions that make several handles. */

#include "core.h"

PyObject *py_graph_pools(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *graph;
    tcuda_mem_pool **pools = NULL;
    size_t room = 0, count = 0;
    tcuda_status status;
    if (!has_arguments("graph_pools", nargs, 1) || !to_pointer(args[0], &graph))
        return NULL;
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        status = tcuda_graph_pools(graph, pools, room, &count);
        if (status == TCUDA_STATUS_OK && count > room)
            for (size_t index = 0; index < room; index++) /* the graph has got more meanwhile */
                tcuda_mem_pool_destroy(pools[index]);
        Py_END_ALLOW_THREADS
        if (status != TCUDA_STATUS_OK || count <= room)
            break;
        PyMem_Free(pools);
        pools = PyMem_Calloc(count, sizeof *pools);
        room = count;
        if (!pools)
            return PyErr_NoMemory();
    }
    PyObject *result = status == TCUDA_STATUS_OK ? list_of_handles((void *const *)pools, count)
                                                 : raise_status(self, status);
    PyMem_Free(pools);
    return result;
}

/* The parts of a split and the handle of what is left, 0: nothing. */
static PyObject *end_split(PyObject *self, tcuda_status status, tcuda_sm_partition **parts,
    size_t count, tcuda_sm_partition *rest)
{
    PyObject *result = status == TCUDA_STATUS_OK
        ? Py_BuildValue(
              "(NN)", list_of_handles((void *const *)parts, count), PyLong_FromVoidPtr(rest))
        : raise_status(self, status);
    PyMem_Free(parts);
    return result;
}

PyObject *py_sm_partition_split(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *partition;
    uint32_t min_sm_count, flags, capacity, count = 0;
    tcuda_sm_partition *rest = NULL;
    tcuda_status status;
    if (!has_arguments("sm_partition_split", nargs, 4) || !to_pointer(args[0], &partition) ||
        !to_uint32(args[1], &min_sm_count) || !to_uint32(args[2], &flags) ||
        !to_uint32(args[3], &capacity))
        return NULL;
    tcuda_sm_partition **parts = PyMem_Calloc(capacity, sizeof *parts);
    if (!parts)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_sm_partition_split(
        partition, min_sm_count, flags, capacity, parts, &count, &rest);
    Py_END_ALLOW_THREADS
    return end_split(self, status, parts, count, rest);
}

PyObject *py_sm_partition_split_groups(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *partition;
    const void *groups;
    size_t count;
    tcuda_sm_partition *rest = NULL;
    tcuda_status status;
    if (!has_arguments("sm_partition_split_groups", nargs, 2) ||
        !to_pointer(args[0], &partition) ||
        !to_items(args[1], sizeof(tcuda_sm_group), &groups, &count))
        return NULL;
    tcuda_sm_partition **parts = PyMem_Calloc(count, sizeof *parts);
    if (!parts)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    status =
        tcuda_sm_partition_split_groups(partition, groups, (uint32_t)count, parts, &rest);
    Py_END_ALLOW_THREADS
    return end_split(self, status, parts, count, rest);
}
