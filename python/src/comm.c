/* comm.c: the functions of tcuda_comm_* that make arrays, and groups of communicators. Lists of
 * arrays are those of tensor_list. */

#include "core.h"

#include <stdlib.h>

/* Room for the arrays that a function makes. */
static tcuda_tensor *room_for(size_t count)
{
    tcuda_tensor *outs = calloc(count + 1, sizeof *outs);
    if (!outs)
        PyErr_NoMemory();
    return outs;
}

/* The handles of the arrays that a function has made; ends the room. */
static PyObject *end_room(PyObject *self, tcuda_status status, tcuda_tensor *outs, size_t count)
{
    PyObject *handles =
        status == TCUDA_STATUS_OK ? handles_of(outs, count) : raise_status(self, status);
    free(outs);
    return handles;
}

static bool to_tensors(PyObject *object, const void **tensors, size_t *count)
{
    return to_items(object, sizeof(tcuda_tensor), tensors, count);
}

static bool to_devices(PyObject *object, const void **devices, size_t *count)
{
    return to_items(object, sizeof(int32_t), devices, count);
}

PyObject *py_comm_broadcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *src;
    const void *devices;
    size_t count;
    tcuda_status status;
    tcuda_tensor *outs;
    if (!has_arguments("comm_broadcast", nargs, 2) || !to_pointer(args[0], &src) ||
        !to_devices(args[1], &devices, &count) || !(outs = room_for(count)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_broadcast(src, devices, count, outs);
    Py_END_ALLOW_THREADS
    return end_room(self, status, outs, count);
}

PyObject *py_comm_broadcast_coalesced(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const void *tensors, *devices;
    size_t num_tensors, num_devices, buffer_bytes;
    tcuda_status status;
    tcuda_tensor *outs;
    if (!has_arguments("comm_broadcast_coalesced", nargs, 3) ||
        !to_tensors(args[0], &tensors, &num_tensors) ||
        !to_devices(args[1], &devices, &num_devices) || !to_size(args[2], &buffer_bytes) ||
        !(outs = room_for(num_devices * num_tensors)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_broadcast_coalesced(
        tensors, num_tensors, devices, num_devices, buffer_bytes, outs);
    Py_END_ALLOW_THREADS
    return end_room(self, status, outs, num_devices * num_tensors);
}

PyObject *py_comm_reduce_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const void *tensors;
    size_t count;
    int32_t destination;
    tcuda_status status;
    tcuda_tensor *out;
    if (!has_arguments("comm_reduce_add", nargs, 2) || !to_tensors(args[0], &tensors, &count) ||
        !to_int32(args[1], &destination) || !(out = room_for(1)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_reduce_add(tensors, count, destination, out);
    Py_END_ALLOW_THREADS
    return end_room(self, status, out, 1);
}

PyObject *py_comm_reduce_add_coalesced(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const void *tensors;
    size_t count, num_devices, buffer_bytes;
    int32_t destination;
    tcuda_status status;
    tcuda_tensor *outs;
    if (!has_arguments("comm_reduce_add_coalesced", nargs, 4) ||
        !to_tensors(args[0], &tensors, &count) || !to_size(args[1], &num_devices) ||
        !to_int32(args[2], &destination) || !to_size(args[3], &buffer_bytes))
        return NULL;
    if (num_devices == 0 || count % num_devices != 0) {
        PyErr_SetString(PyExc_ValueError, "the lists have different lengths");
        return NULL;
    }
    size_t num_tensors = count / num_devices;
    if (!(outs = room_for(num_tensors)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_reduce_add_coalesced(
        tensors, num_devices, num_tensors, destination, buffer_bytes, outs);
    Py_END_ALLOW_THREADS
    return end_room(self, status, outs, num_tensors);
}

/* Streams, one for each piece, or none at all. */
static bool to_streams(PyObject *object, size_t count, const void **streams)
{
    size_t given = count;
    *streams = NULL;
    if (object != Py_None && !to_items(object, sizeof(tcuda_stream *), streams, &given))
        return false;
    if (given != count)
        PyErr_Format(PyExc_ValueError, "there are %zu streams for %zu pieces", given, count);
    return given == count;
}

PyObject *py_comm_scatter(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *tensor;
    const void *devices, *chunk_sizes = NULL, *streams;
    size_t count, num_sizes;
    int32_t dim;
    tcuda_status status;
    tcuda_tensor *outs;
    if (!has_arguments("comm_scatter", nargs, 5) || !to_pointer(args[0], &tensor) ||
        !to_devices(args[1], &devices, &count) || !to_int32(args[3], &dim) ||
        !to_streams(args[4], count, &streams))
        return NULL;
    num_sizes = count;
    if (args[2] != Py_None && !to_items(args[2], sizeof(int64_t), &chunk_sizes, &num_sizes))
        return NULL;
    if (num_sizes != count) {
        PyErr_Format(PyExc_ValueError, "there are %zu sizes for %zu devices", num_sizes, count);
        return NULL;
    }
    if (!(outs = room_for(count)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_scatter(
        tensor, devices, chunk_sizes, count, dim, (tcuda_stream *const *)streams, outs);
    Py_END_ALLOW_THREADS
    while (count > 0 && status == TCUDA_STATUS_OK && outs[count - 1].dtype.bits == 0)
        count--; /* there are fewer pieces than devices */
    return end_room(self, status, outs, count);
}

PyObject *py_comm_scatter_into(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *tensor;
    const void *outs, *streams;
    size_t count;
    int32_t dim;
    tcuda_status status;
    if (!has_arguments("comm_scatter_into", nargs, 4) || !to_pointer(args[0], &tensor) ||
        !to_tensors(args[1], &outs, &count) || !to_int32(args[2], &dim) ||
        !to_streams(args[3], count, &streams))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_scatter_into(tensor, outs, count, dim, (tcuda_stream *const *)streams);
    Py_END_ALLOW_THREADS
    return status == TCUDA_STATUS_OK ? Py_NewRef(Py_None) : raise_status(self, status);
}

PyObject *py_comm_gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const void *tensors;
    size_t count;
    int32_t dim, destination;
    tcuda_status status;
    tcuda_tensor *out;
    if (!has_arguments("comm_gather", nargs, 3) || !to_tensors(args[0], &tensors, &count) ||
        !to_int32(args[1], &dim) || !to_int32(args[2], &destination) || !(out = room_for(1)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_comm_gather(tensors, count, dim, destination, out);
    Py_END_ALLOW_THREADS
    return end_room(self, status, out, 1);
}

PyObject *py_communicator_init_all(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const void *devices;
    size_t count;
    tcuda_status status;
    if (!has_arguments("communicator_init_all", nargs, 1) ||
        !to_devices(args[0], &devices, &count))
        return NULL;
    tcuda_communicator **communicators = calloc(count + 1, sizeof *communicators);
    if (!communicators)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_communicator_init_all(devices, count, communicators);
    Py_END_ALLOW_THREADS
    PyObject *handles = status == TCUDA_STATUS_OK
        ? list_of_handles((void *const *)communicators, count)
        : raise_status(self, status);
    free(communicators);
    return handles;
}
