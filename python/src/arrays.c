/* arrays.c: arrays in memory of tcuda or of another library, and their capsules of DLPack. */

#include "core.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What a handle of an array points to. It never changes, and ends with the last of its references:
 * the array's and those of its capsules. A capsule may end on any thread, without Python. */
struct array {
    tcuda_tensor tensor; /* first, so that a handle is also a pointer to a tensor */
    struct array *origin; /* with the same memory; may be NULL */
    void *block; /* of tcuda_malloc, in which the memory is; NULL: it is of others */
    atomic_size_t references;
    bool is_allocated; /* by tcuda_malloc; else tcuda_tensor_release frees it */
    bool is_read_only;
    int64_t sizes[]; /* shape and strides of memory that is_allocated */
};

/* The layouts of DLPack's two capsules. */
struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *managed);
    uint64_t flags;
    tcuda_tensor tensor;
};

struct unversioned {
    tcuda_tensor tensor;
    void *context;
    void (*deleter)(struct unversioned *managed);
};

enum { READ_ONLY = 1, COPIED = 2 }; /* flags */

static const char *const FRESH[] = {"dltensor", "dltensor_versioned"};
static const char *const TAKEN[] = {"used_dltensor", "used_dltensor_versioned"};

static void end_array(struct array *array)
{
    while (array && atomic_fetch_sub(&array->references, 1) == 1) {
        struct array *origin = array->origin;
        if (array->is_allocated)
            tcuda_free(array->tensor.data);
        else
            tcuda_tensor_release(&array->tensor);
        free(array);
        array = origin;
    }
}

/* An array with room for the sizes of so many dimensions; NULL with an exception set. */
static struct array *new_array(size_t ndim)
{
    struct array *array = calloc(1, sizeof *array + 2 * ndim * sizeof(int64_t));
    if (!array) {
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&array->references, 1);
    return array;
}

static size_t bytes_of_element(const tcuda_tensor *tensor)
{
    return ((size_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
}

static int64_t stride_of(const tcuda_tensor *tensor, int32_t dim)
{
    int64_t stride = 1;
    if (tensor->strides)
        return tensor->strides[dim];
    for (int32_t next = dim + 1; next < tensor->ndim; next++)
        stride *= tensor->shape[next] > 1 ? tensor->shape[next] : 1;
    return stride;
}

/* Reads the first numbers of a tuple. */
static bool to_sizes(PyObject *tuple, Py_ssize_t length, int64_t *sizes)
{
    for (Py_ssize_t index = 0; index < length; index++)
        if (!to_int64(PyTuple_GetItem(tuple, index), &sizes[index]))
            return false;
    return true;
}

static bool is_tuple_of(PyObject *tuple, Py_ssize_t length)
{
    if (!PyTuple_Check(tuple))
        PyErr_SetString(PyExc_TypeError, "shape and strides are tuples of int");
    else if (PyTuple_Size(tuple) != length)
        PyErr_SetString(PyExc_ValueError, "there is not one stride for each dimension");
    else if (length > 64)
        PyErr_SetString(PyExc_ValueError, "there are more than 64 dimensions");
    else
        return true;
    return false;
}

/* Reads shape and strides, None: contiguous, into a tensor, whose shape has room for both. */
static bool to_layout(PyObject *shape, PyObject *strides, tcuda_tensor *tensor)
{
    tensor->strides = tensor->shape + tensor->ndim;
    if (!to_sizes(shape, tensor->ndim, tensor->shape))
        return false;
    if (strides != Py_None)
        return is_tuple_of(strides, tensor->ndim) &&
            to_sizes(strides, tensor->ndim, tensor->strides);
    int64_t stride = 1;
    for (int32_t dim = tensor->ndim - 1; dim >= 0; dim--) {
        int64_t size = tensor->shape[dim];
        tensor->strides[dim] = stride;
        if (size > 1 && __builtin_mul_overflow(stride, size, &stride)) {
            PyErr_SetString(PyExc_ValueError, "the array is too large");
            return false;
        }
    }
    return true;
}

/* The bytes from the first to the last element; strides are not negative. */
static bool span_of(const tcuda_tensor *tensor, size_t *bytes)
{
    size_t last = 0, part;
    bool is_empty = false;
    *bytes = 0;
    for (int32_t dim = 0; dim < tensor->ndim; dim++) {
        int64_t size = tensor->shape[dim], stride = tensor->strides[dim];
        if (size < 0 || stride < 0) {
            PyErr_SetString(PyExc_ValueError, "sizes and strides of an array are not negative");
            return false;
        }
        is_empty |= size == 0;
        if (size > 0 && (__builtin_mul_overflow((size_t)size - 1, (size_t)stride, &part) ||
                __builtin_add_overflow(last, part, &last))) {
            PyErr_SetString(PyExc_ValueError, "the array is too large");
            return false;
        }
    }
    if (is_empty)
        return true;
    if (__builtin_add_overflow(last, 1, &last) ||
        __builtin_mul_overflow(last, bytes_of_element(tensor), bytes)) {
        PyErr_SetString(PyExc_ValueError, "the array is too large");
        return false;
    }
    return true;
}

static bool to_dtype(PyObject *const *code_and_bits, tcuda_dtype *dtype)
{
    uint32_t code, bits;
    if (!to_uint32(code_and_bits[0], &code) || !to_uint32(code_and_bits[1], &bits))
        return false;
    *dtype = (tcuda_dtype){.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1};
    return true;
}

PyObject *py_tensor_empty(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t bytes;
    int32_t device;
    tcuda_status status = TCUDA_STATUS_OK;
    if (!has_arguments("tensor_empty", nargs, 5) || !is_tuple_of(args[0], PyTuple_Size(args[0])))
        return NULL;
    Py_ssize_t ndim = PyTuple_Size(args[0]);
    struct array *array = new_array((size_t)ndim);
    if (!array)
        return NULL;
    tcuda_tensor *tensor = &array->tensor;
    array->is_allocated = true;
    tensor->shape = array->sizes;
    tensor->ndim = (int32_t)ndim;
    if (!to_dtype(args + 2, &tensor->dtype) || !to_int32(args[4], &device) ||
        !to_layout(args[0], args[1], tensor) || !span_of(tensor, &bytes)) {
        free(array);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (device < 0)
        status = tcuda_device_current(&device);
    tensor->device = (tcuda_tensor_device){TCUDA_DEVICE_CUDA, device};
    if (status == TCUDA_STATUS_OK)
        status = tcuda_malloc(bytes, device, NULL, &tensor->data);
    Py_END_ALLOW_THREADS
    array->block = tensor->data;
    if (status == TCUDA_STATUS_OK)
        return PyLong_FromVoidPtr(array);
    free(array);
    return raise_status(self, status);
}

/* Moves a capsule into an array; on failure it stays the caller's. */
static struct array *adopt(PyObject *self, struct DLManagedTensorVersioned *managed)
{
    tcuda_status status;
    struct array *array = new_array(0);
    if (!array)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_tensor_from_dlpack(managed, &array->tensor);
    Py_END_ALLOW_THREADS
    if (status == TCUDA_STATUS_OK) {
        array->is_read_only = managed->flags & READ_ONLY;
        return array;
    }
    free(array);
    raise_status(self, status);
    return NULL;
}

/* Memory of a Python object, as a capsule. */
struct view {
    struct DLManagedTensorVersioned managed; /* first */
    PyObject *owner;
    int64_t sizes[];
};

static void delete_view(struct DLManagedTensorVersioned *managed)
{
    struct view *view = (struct view *)managed;
    struct python python;
    if (enter_python(&python)) {
        Py_DECREF(view->owner);
        leave_python(&python);
    }
    free(view);
}

PyObject *py_tensor_view(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    int32_t read_only;
    if (!has_arguments("tensor_view", nargs, 9) || !is_tuple_of(args[1], PyTuple_Size(args[1])))
        return NULL;
    Py_ssize_t ndim = PyTuple_Size(args[1]);
    struct view *view = calloc(1, sizeof *view + 2 * (size_t)ndim * sizeof(int64_t));
    if (!view)
        return PyErr_NoMemory();
    tcuda_tensor *tensor = &view->managed.tensor;
    tensor->shape = view->sizes;
    tensor->ndim = (int32_t)ndim;
    if (!to_pointer(args[0], &tensor->data) || !to_layout(args[1], args[2], tensor) ||
        !to_dtype(args + 3, &tensor->dtype) ||
        !to_int32(args[5], &tensor->device.device_type) ||
        !to_int32(args[6], &tensor->device.device_id) || !to_int32(args[7], &read_only)) {
        free(view);
        return NULL;
    }
    view->managed.major = 1;
    view->managed.deleter = delete_view;
    view->managed.flags = read_only ? READ_ONLY : 0;
    struct array *array = adopt(self, &view->managed);
    if (!array) {
        free(view);
        return NULL;
    }
    view->owner = Py_NewRef(args[8]);
    return PyLong_FromVoidPtr(array);
}

/* An unversioned capsule, as one of version 1. */
static void delete_wrapped(struct DLManagedTensorVersioned *managed)
{
    struct unversioned *inner = managed->context;
    if (inner->deleter)
        inner->deleter(inner);
    free(managed);
}

PyObject *py_tensor_from_capsule(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct DLManagedTensorVersioned *managed, *wrapped = NULL;
    if (!has_arguments("tensor_from_capsule", nargs, 1))
        return NULL;
    bool is_versioned = PyCapsule_IsValid(args[0], FRESH[1]);
    void *pointer = PyCapsule_GetPointer(args[0], FRESH[is_versioned]);
    if (!pointer)
        return NULL;
    if (is_versioned) {
        managed = pointer;
    } else {
        managed = wrapped = calloc(1, sizeof *wrapped);
        if (!wrapped)
            return PyErr_NoMemory();
        wrapped->major = 1;
        wrapped->context = pointer;
        wrapped->deleter = delete_wrapped;
        wrapped->tensor = ((struct unversioned *)pointer)->tensor;
    }
    /* First, because another thread may take it while this one waits without the GIL. */
    PyCapsule_SetName(args[0], TAKEN[is_versioned]);
    struct array *array = adopt(self, managed);
    if (array)
        return PyLong_FromVoidPtr(array);
    PyCapsule_SetName(args[0], FRESH[is_versioned]);
    free(wrapped);
    return NULL;
}

/* A capsule of an array, of either layout. */
struct capsule {
    union {
        struct DLManagedTensorVersioned versioned;
        struct unversioned unversioned;
    } managed; /* first */
    struct array *array;
    tcuda_stream *stream; /* the consumer's; NULL: the current one, or it may not last */
};

/* Called with or without the GIL, which threads may wait for while they hold locks of tcuda. */
static void end_capsule(struct capsule *capsule)
{
    struct python python;
    PyThreadState *thread = NULL;
    if (PyGILState_GetThisThreadState() && enter_python(&python))
        thread = PyEval_SaveThread();
    /* The memory waits for what the stream holds now, once it is freed. */
    tcuda_stream_destroy(capsule->stream);
    end_array(capsule->array);
    free(capsule);
    if (thread) {
        PyEval_RestoreThread(thread);
        leave_python(&python);
    }
}

static void delete_versioned(struct DLManagedTensorVersioned *managed)
{
    end_capsule((struct capsule *)managed);
}

static void delete_unversioned(struct unversioned *managed)
{
    end_capsule((struct capsule *)managed);
}

/* The end of a capsule's object: without a consumer the capsule ends, too. */
static void end_object(PyObject *object)
{
    for (int is_versioned = 0; is_versioned < 2; is_versioned++)
        if (PyCapsule_IsValid(object, FRESH[is_versioned]))
            end_capsule(PyCapsule_GetPointer(object, FRESH[is_versioned]));
}

/* Lets the consumer's stream wait for the current one. Memory is kept for the work that the stream
 * holds when the capsule ends, if the stream exists until then: tcuda's own do, others if they
 * are lasting. */
static tcuda_status order(struct capsule *capsule, struct CUstream_st *native, bool is_lasting)
{
    tcuda_stream *current, *stream;
    struct CUstream_st *native_current;
    int64_t id;
    const struct array *array = capsule->array;
    int32_t device = array->tensor.device.device_id;
    tcuda_status status = tcuda_stream_current(device, &current);
    if (status == TCUDA_STATUS_OK)
        status = tcuda_stream_native(current, &native_current);
    if (status != TCUDA_STATUS_OK)
        return status;
    stream = current;
    if (native != native_current) {
        status = tcuda_stream_from_external(device, native, &stream);
        if (status != TCUDA_STATUS_OK)
            return status;
        capsule->stream = stream;
        status = tcuda_stream_wait_stream(stream, current);
        if (status == TCUDA_STATUS_OK)
            status = tcuda_stream_id(stream, &id);
        /* The id of a stream of others is its native handle. */
        is_lasting |= status == TCUDA_STATUS_OK && id != (int64_t)(intptr_t)native;
        if (!is_lasting) {
            capsule->stream = NULL;
            tcuda_stream_destroy(stream);
            return status;
        }
    }
    while (array->origin)
        array = array->origin;
    if (status == TCUDA_STATUS_OK && array->block)
        status = tcuda_record_stream(array->block, stream);
    return status;
}

PyObject *py_tensor_to_capsule(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *pointer, *native;
    int32_t is_versioned, is_copied, is_ordered, is_lasting;
    tcuda_status status = TCUDA_STATUS_OK;
    if (!has_arguments("tensor_to_capsule", nargs, 6) || !to_pointer(args[0], &pointer) ||
        !to_int32(args[1], &is_versioned) || !to_int32(args[2], &is_copied) ||
        !to_int32(args[3], &is_ordered) || !to_pointer(args[4], &native) ||
        !to_int32(args[5], &is_lasting))
        return NULL;
    struct capsule *capsule = calloc(1, sizeof *capsule);
    if (!capsule)
        return PyErr_NoMemory();
    struct array *array = capsule->array = pointer;
    atomic_fetch_add(&array->references, 1);
    if (is_ordered) {
        Py_BEGIN_ALLOW_THREADS
        status = order(capsule, native, is_lasting);
        Py_END_ALLOW_THREADS
    }
    if (status != TCUDA_STATUS_OK) {
        raise_status(self, status);
        end_capsule(capsule);
        return NULL;
    }
    tcuda_tensor tensor = array->tensor;
    if (tensor.data) /* some consumers ignore byte_offset */
        tensor.data = (char *)tensor.data + tensor.byte_offset;
    tensor.byte_offset = 0;
    if (tensor.device.device_type == TCUDA_DEVICE_CUDA_HOST) /* few consumers know it */
        tensor.device.device_type = TCUDA_DEVICE_CPU;
    if (is_versioned) {
        capsule->managed.versioned = (struct DLManagedTensorVersioned){
            .major = 1,
            .minor = 1,
            .deleter = delete_versioned,
            .flags = (array->is_read_only ? READ_ONLY : 0) | (is_copied ? COPIED : 0),
            .tensor = tensor,
        };
    } else {
        capsule->managed.unversioned =
            (struct unversioned){.tensor = tensor, .deleter = delete_unversioned};
    }
    PyObject *object = PyCapsule_New(capsule, FRESH[is_versioned != 0], end_object);
    if (!object)
        end_capsule(capsule);
    return object;
}

PyObject *py_tensor_info(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *pointer;
    (void)self;
    if (!has_arguments("tensor_info", nargs, 1) || !to_pointer(args[0], &pointer))
        return NULL;
    const struct array *array = pointer;
    const tcuda_tensor *tensor = &array->tensor;
    PyObject *shape = PyTuple_New(tensor->ndim), *strides = PyTuple_New(tensor->ndim);
    for (int32_t dim = 0; shape && strides && dim < tensor->ndim; dim++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[dim]);
        PyObject *stride = PyLong_FromLongLong(stride_of(tensor, dim));
        if (PyTuple_SetItem(shape, dim, size) != 0 || PyTuple_SetItem(strides, dim, stride) != 0)
            Py_CLEAR(shape);
    }
    if (!shape || !strides || PyErr_Occurred()) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        return NULL;
    }
    uintptr_t address = (uintptr_t)tensor->data + tensor->byte_offset;
    return Py_BuildValue("(NNN(iii)(ii)N)", PyLong_FromVoidPtr((void *)address), shape, strides,
        (int)tensor->dtype.code, (int)tensor->dtype.bits, (int)tensor->dtype.lanes,
        (int)tensor->device.device_type, (int)tensor->device.device_id,
        PyBool_FromLong(array->is_read_only));
}

/* Does the first byte of a tensor belong to another one? */
static bool is_inside(const tcuda_tensor *tensor, const tcuda_tensor *whole)
{
    uintptr_t address = (uintptr_t)tensor->data + tensor->byte_offset;
    uintptr_t low = (uintptr_t)whole->data + whole->byte_offset, high = low;
    size_t bytes = bytes_of_element(whole);
    if (!tensor->data || !whole->data)
        return false;
    for (int32_t dim = 0; dim < whole->ndim; dim++) {
        if (whole->shape[dim] == 0)
            return false;
        int64_t reach = (whole->shape[dim] - 1) * stride_of(whole, dim) * (int64_t)bytes;
        *(reach < 0 ? &low : &high) += (uintptr_t)reach;
    }
    return address >= low && address < high + bytes;
}

PyObject *py_tensor_set_origin(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *pointer, *other;
    (void)self;
    if (!has_arguments("tensor_set_origin", nargs, 2) || !to_pointer(args[0], &pointer) ||
        !to_pointer(args[1], &other))
        return NULL;
    struct array *array = pointer, *origin = other;
    bool is_set = !array->origin && is_inside(&array->tensor, &origin->tensor);
    if (is_set) {
        atomic_fetch_add(&origin->references, 1);
        array->origin = origin;
        array->is_read_only = origin->is_read_only;
    }
    return PyBool_FromLong(is_set);
}

PyObject *py_tensor_list(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_tensor *tensors;
    Py_ssize_t bytes;
    (void)self;
    if (!has_arguments("tensor_list", nargs, 1))
        return NULL;
    Py_ssize_t count = PyList_Size(args[0]);
    if (count < 0)
        return NULL;
    PyObject *list = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof *tensors);
    if (!list || PyBytes_AsStringAndSize(list, (char **)&tensors, &bytes) != 0)
        return NULL;
    for (Py_ssize_t index = 0; index < count; index++) {
        void *tensor;
        if (!to_pointer(PyList_GetItem(args[0], index), &tensor)) {
            Py_DECREF(list);
            return NULL;
        }
        memcpy(&tensors[index], tensor, sizeof *tensors);
    }
    return list;
}

PyObject *py_tensor_destroy(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    void *array;
    (void)self;
    if (!has_arguments("tensor_destroy", nargs, 1) || !to_pointer(args[0], &array))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    end_array(array);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

/* Finds the block of each array; several may be in one, which begins with one of them. */
static void find_blocks(struct array *const *arrays, size_t count, void **starts)
{
    size_t num_starts = 0;
    for (size_t index = 0; index < count; index++) {
        void *data = arrays[index]->tensor.data;
        /* No effect, except that it fails if no block starts there. */
        if (data && tcuda_record_stream(data, NULL) == TCUDA_STATUS_OK)
            arrays[index]->block = starts[num_starts++] = data;
    }
    for (size_t index = 0; index < count; index++) {
        struct array *array = arrays[index];
        for (size_t start = 0; start < num_starts; start++)
            if (starts[start] <= array->tensor.data && starts[start] > array->block)
                array->block = starts[start];
    }
}

PyObject *handles_of(tcuda_tensor *tensors, size_t count)
{
    struct array **arrays = calloc(2 * count + 1, sizeof *arrays);
    PyObject *handles = arrays ? PyList_New((Py_ssize_t)count) : PyErr_NoMemory();
    for (size_t index = 0; index < count; index++) {
        struct array *array = handles ? new_array(0) : NULL;
        PyObject *handle = array ? PyLong_FromVoidPtr(array) : NULL;
        if (!handle || PyList_SetItem(handles, (Py_ssize_t)index, handle) != 0) {
            free(array);
            tcuda_tensor_release(&tensors[index]);
            /* Those before it stay allocated: memory of the host is at its end. */
            Py_CLEAR(handles);
        } else {
            array->tensor = tensors[index];
            arrays[index] = array;
        }
    }
    if (handles) {
        Py_BEGIN_ALLOW_THREADS
        find_blocks(arrays, count, (void **)(arrays + count));
        Py_END_ALLOW_THREADS
    }
    free(arrays);
    return handles;
}
